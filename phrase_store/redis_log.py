"""Phrase logs as Redis Streams on one server, a cluster, or the master that sentinels name."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AuthenticationError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from draftloop.errors import InvalidInput, StartupFailure
from draftloop.pem import require_authority, require_pair
from phrase_store.log import (
    START,
    Entry,
    LogDenied,
    LogOptions,
    LogRefused,
    LogUnavailable,
    PhraseLog,
)
from phrase_store.redis_url import STARS, RedisAddress, Topology, masked, parse
from phrase_store.trail import Trail, numbers

KEY_PREFIX = "draftloop:phrases:"
FIELD = b"r"
# Key infix, which no model fingerprint can be, of a one-entry stream whose entry has the position
# of the log's last clearing.
CLEARED = "cleared:"
SCAN_COUNT = 500
# For connections with a password. By default redis-py then sends the library's name, with a command
# that our Redis user has no permission for. Without a password the command stays: its answer is the
# first one, and with TLS redis-py would take what follows the handshake for leftover data.
UNNAMED: dict[str, Any] = (
    {"driver_info": None}
    if importlib.util.find_spec("redis.driver_info")
    else {"lib_name": None, "lib_version": None}
)
# A server that does not know a command quotes its arguments; those of AUTH are a password.
QUOTE = ", with args beginning with"
# Answers of servers older than 6.2 to XRANGE with an exclusive position, to SCAN with a type, and
# to XTRIM with a least position.
TOO_OLD = ("Invalid stream ID specified", "syntax error")
# A server checks only every tenth of a second which blocked clients have timed out.
SLACK_S = 0.25

Answer = TypeVar("Answer")


class RedisLog(PhraseLog):
    """One stream, with two clients: one for quick calls, one that may wait for records."""

    def __init__(self, url: str, namespace: str, options: LogOptions) -> None:
        self._address = parse(url)
        self._shown = _RedactedUrl(url)
        self._options = options
        self._key = KEY_PREFIX + namespace
        self._cleared_key = KEY_PREFIX + CLEARED + namespace
        self._clients: dict[float, Any] = {}
        self._lock = threading.Lock()
        self._trail = Trail()

    def append(self, records: Sequence[bytes]) -> None:
        def send(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            for record in records:
                pipeline.xadd(
                    self._key, {FIELD: record}, maxlen=self._options.max_length, approximate=True
                )
            pipeline.execute()

        self._call(send)

    def read(self, after: str, limit: int) -> list[Entry]:
        first = "-" if after == START else f"({after}"
        found = self._call(lambda client: client.xrange(self._key, first, "+", limit))
        return self._noted(_entries(found or ()))

    def follow(self, after: str, limit: int, timeout_s: float) -> list[Entry]:
        milliseconds = max(1, int(timeout_s * 1000))
        found = self._call(
            lambda client: client.xread({self._key: after or "0"}, limit, milliseconds), timeout_s
        )
        if not found:
            return []
        streams = found.values() if isinstance(found, dict) else [pair[1] for pair in found]
        return self._noted(_entries([entry for stream in streams for entry in stream]))

    def resume(self, after: str) -> str:
        last = self._call(lambda client: client.xrevrange(self._key, "+", "-", 1))
        end = _text(last[0][0]) if last else after
        if numbers(end) >= numbers(after):
            return after
        mark = self._trail.back_to(end)
        if mark and self._call(lambda client: client.xrange(self._key, mark, mark)):
            return end
        self._trail = Trail()
        return START

    def cleared(self, after: str) -> str | None:
        last = self._call(lambda client: client.xrevrange(self._cleared_key, "+", "-", 1))
        place = _text(last[0][0]) if last else START
        return place if numbers(place) > numbers(after) else None

    def length(self) -> int:
        return int(self._call(lambda client: client.xlen(self._key)))

    def clear(self, word: bytes) -> None:
        def add_record(client: Any) -> None:
            try:
                place = client.xadd(self._key, {FIELD: word})
            except OutOfMemoryError:  # the records to be dropped may be what fills the memory
                client.xtrim(self._key, maxlen=0, approximate=False)
                place = client.xadd(self._key, {FIELD: word})
            client.xtrim(self._key, minid=place, approximate=False)
            self._note_clearing(client, _text(place))

        self._call(add_record)

    def _note_clearing(self, client: Any, place: str) -> None:
        try:
            client.xadd(self._cleared_key, {FIELD: b""}, id=place, maxlen=1, approximate=False)
        except ResponseError:
            last = client.xrevrange(self._cleared_key, "+", "-", 1)
            if not last or numbers(_text(last[0][0])) < numbers(place):
                raise  # otherwise another client has cleared it meanwhile

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _noted(self, entries: list[Entry]) -> list[Entry]:
        self._trail.add(entries)
        return entries

    def _call(self, command: Callable[[Any], Answer], wait_s: float = 0.0) -> Answer:
        with _as_unavailable(self._shown):
            return command(self._client(wait_s))

    def _client(self, wait_s: float) -> Any:
        with self._lock:
            if wait_s not in self._clients:
                self._clients[wait_s] = client_of(self._address, self._options, wait_s)
            return self._clients[wait_s]


def check(url: str) -> None:
    """Raises InvalidInput for a URL that breaks the rules."""
    parse(url)


def check_files(url: str) -> None:
    """Raises InvalidInput for a URL that names unusable files."""
    tls = parse(url).tls or {}
    authority, certificate = tls.get("ssl_ca_certs"), tls.get("ssl_certfile")
    try:
        if authority:
            require_authority("ssl_ca_certs", Path(authority))
        if certificate:
            key = tls.get("ssl_keyfile", certificate)  # one file may hold both
            require_pair("ssl_certfile", Path(certificate), "ssl_keyfile", Path(key))
    except StartupFailure as error:
        raise InvalidInput("phrases_url", str(error), masked(url)) from None


def connect(url: str, namespace: str, options: LogOptions) -> RedisLog:
    """The namespace's stream."""
    return RedisLog(url, namespace, options)


def namespaces(url: str, options: LogOptions) -> list[str]:
    """Namespaces that have a stream."""
    with _as_unavailable(_RedactedUrl(url)):
        client = client_of(parse(url), options, 0.0)
        try:
            keys = client.scan_iter(match=f"{KEY_PREFIX}*", count=SCAN_COUNT, _type="stream")
            names = (_name(key).removeprefix(KEY_PREFIX) for key in keys)
            return sorted(name for name in names if name and not name.startswith(CLEARED))
        finally:
            client.close()


def client_of(address: RedisAddress, options: LogOptions, wait_s: float) -> Any:
    """A client whose calls end within the options' timeouts plus `wait_s`, without retries.

    Retrying is left to the circuit breaker. A cluster or sentinel is contacted immediately to find
    the servers; everything else connects when it is first used.
    """
    common: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": options.connect_timeout_s,
        "socket_timeout": options.operation_timeout_s + (wait_s + SLACK_S if wait_s else 0.0),
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        # The empty password fits no encrypted key; without one, OpenSSL would ask on the terminal.
        **({"ssl": True, "ssl_password": "", **address.tls} if address.tls is not None else {}),
    }
    named = {**common, **(UNNAMED if address.password else {})}
    if address.topology is Topology.CLUSTER:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        return RedisCluster(startup_nodes=nodes, **named)
    if address.topology is Topology.SENTINEL:
        sentinels = _sentinels(address, options, common)
        client = sentinels.master_for(address.master, db=address.database, **named)
    else:
        client = _single(address, named)
    client.set_response_callback("XRANGE", lambda answer, **_: answer)  # see `_record`
    return client


def _sentinels(address: RedisAddress, options: LogOptions, common: dict[str, Any]) -> Sentinel:
    own = {
        **common,
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_timeout": options.operation_timeout_s,  # sentinels are never waited on for records
        **(UNNAMED if address.sentinel_password else {}),
    }
    return Sentinel(address.hosts, sentinel_kwargs=own)


def _single(address: RedisAddress, common: dict[str, Any]) -> Any:
    if address.topology is Topology.SOCKET:
        return redis.Redis(unix_socket_path=address.path, db=address.database, **common)
    (host, port), *_ = address.hosts
    return redis.Redis(host=host, port=port, db=address.database, **common)


class _RedactedUrl:
    """A server's URL and error messages, without secrets."""

    def __init__(self, url: str) -> None:
        address = parse(url)
        self.url = masked(url)
        self._secrets = [text for text in (address.password, address.sentinel_password) if text]

    def reason(self, error: Exception) -> str:
        """The error's text, without anything that it quotes of what the server was sent."""
        # Errors of sentinels end with the repr of whole clients. Errors of pipelines begin with the
        # command, whose records contain users' text.
        text = str(error).partition(QUOTE)[0].rpartition("caused error: ")[2]
        text = text.partition(" : <")[0] or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, STARS)
        too_old = isinstance(error, ResponseError) and text.startswith(TOO_OLD)
        return f"{text}; is it older than Redis 6.2?" if too_old else text


@contextmanager
def _as_unavailable(shown: _RedactedUrl) -> Iterator[None]:
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        raise _kind(error)(f"{shown.url}: {shown.reason(error)}") from None


def _kind(error: Exception) -> type[LogUnavailable]:
    if isinstance(error, AuthenticationError):
        return LogDenied
    return LogRefused if isinstance(error, ResponseError) else LogUnavailable


def _entries(raw: Sequence[Any]) -> list[Entry]:
    return [Entry(_text(place), _record(fields)) for place, fields in raw]


def _record(fields: Any) -> bytes:
    """The record of an entry; empty, which cannot be decoded, for an entry that is not ours.

    `client_of` keeps redis-py from turning the fields of XRANGE, a list, into a dictionary: that
    would take as long as reading them from the network.
    """
    if isinstance(fields, list):
        return bytes(fields[1]) if len(fields) == 2 and fields[0] == FIELD else b""
    return bytes((fields or {}).get(FIELD, b""))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _name(key: bytes | str) -> str:
    """The key as text; empty for one that is not UTF-8 and so not ours."""
    try:
        return _text(key)
    except UnicodeDecodeError:
        return ""
