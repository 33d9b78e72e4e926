"""Redis URLs of the phrase log: parsing, and masking of secrets for log lines.

Forms and parameters are documented in docs/phrases.md. The TLS parameters are redis-py's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from draftloop.errors import InvalidInput

STARS = "***"
_FIELD = "phrases_url"
_PORT, _SENTINEL_PORT = 6379, 26379
_TLS_PARAMETERS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs",
                   "ssl_check_hostname")  # fmt: skip
_SENTINEL_PARAMETERS = ("sentinel_username", "sentinel_password")
_SOCKET_PARAMETERS = ("db",)
_BOOLEANS = {"true": True, "false": False}
# Greedy up to the last @, with or without a scheme, and everything after a password parameter: a
# secret with an @, /, & or # that is not percent-encoded must not show either.
_CREDENTIALS = re.compile(r"^([\w+.-]*://)?(?:([^:@/]*):)?.*@", re.DOTALL)
_SECRET_PARAMETER = re.compile(r"(password=).*", re.IGNORECASE | re.DOTALL)


class Topology(StrEnum):
    """What kind of server is at the address."""

    SERVER = "server"
    SOCKET = "socket"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A parsed URL; its repr holds no secrets."""

    topology: Topology
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    master: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: dict[str, Any] | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)


def masked(url: str) -> str:
    """The URL with stars for its secrets, valid or not."""
    shown = _SECRET_PARAMETER.sub(rf"\1{STARS}", url)
    return _CREDENTIALS.sub(_starred, shown)


def _starred(found: re.Match[str]) -> str:
    scheme, username = found[1] or "", found[2]
    return f"{scheme}{STARS}@" if username is None else f"{scheme}{username}:{STARS}@"


def parse(url: str) -> RedisAddress:
    """Parses a URL. Raises InvalidInput naming the broken rule, with secrets masked."""
    try:
        return _Parser(url).address()
    except ValueError as error:
        raise InvalidInput(_FIELD, str(error), masked(url)) from None


class _Parser:
    """Parses one URL; methods raise ValueError with the rule that it breaks."""

    def __init__(self, url: str) -> None:
        try:
            self._parts: SplitResult = urlsplit(url)
        except ValueError:  # its text may quote a password
            raise ValueError("must be a URL, special characters percent-encoded") from None
        base, _, topology = self._parts.scheme.lower().partition("+")
        self._secure = base == "rediss"
        self._topology = (
            Topology.SOCKET if base == "unix" else Topology(topology or Topology.SERVER)
        )
        pairs = parse_qsl(self._parts.query, keep_blank_values=True)
        self._parameters = dict(pairs)
        self._folders = [unquote(part) for part in self._parts.path.split("/")[1:]]

    def address(self) -> RedisAddress:
        """The parsed URL."""
        if self._parts.fragment:
            raise ValueError("must have # percent-encoded as %23")
        username, password = self._credentials()
        tls = self._tls() if self._secure else None
        kind = self._topology
        address = RedisAddress(
            topology=kind,
            hosts=() if kind is Topology.SOCKET else self._hosts(),
            path=self._socket_path() if kind is Topology.SOCKET else "",
            master=self._master() if kind is Topology.SENTINEL else "",
            database=self._database(),
            username=username,
            password=password,
            tls=tls,
            sentinel_username=self._sentinel_parameter("sentinel_username"),
            sentinel_password=self._sentinel_parameter("sentinel_password"),
        )
        if self._parameters:
            raise ValueError(self._parameter_rule())
        return address

    def _parameter_rule(self) -> str:
        """Without the name that was given: it may be the rest of a password with an & in it."""
        known: tuple[str, ...] = _TLS_PARAMETERS if self._secure else ()
        known += _SENTINEL_PARAMETERS if self._topology is Topology.SENTINEL else ()
        known += _SOCKET_PARAMETERS if self._topology is Topology.SOCKET else ()
        if not known:
            return "must not have parameters"
        return f"must not have parameters other than {', '.join(known)}"

    def _credentials(self) -> tuple[str | None, str | None]:
        user_info, separator, _ = self._parts.netloc.rpartition("@")
        username, has_password, password = user_info.partition(":")
        if separator and not has_password:
            raise ValueError("must have user:password or :password before the @")
        return unquote(username) or None, unquote(password) or None

    def _hosts(self) -> tuple[tuple[str, int], ...]:
        listed = self._parts.netloc.rpartition("@")[2]
        hosts = tuple(self._host(text) for text in listed.split(",") if text)
        if not hosts:
            raise ValueError("must name a host")
        if len(hosts) > 1 and self._topology is Topology.SERVER:
            raise ValueError("must name one host; several need redis+cluster or redis+sentinel")
        return hosts

    def _host(self, text: str) -> tuple[str, int]:
        found = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?", text)
        if found is None or int(found[2] or 1) not in range(1, 1 << 16):
            raise ValueError("must have hosts of the form name, name:port or [address]:port")
        default = _SENTINEL_PORT if self._topology is Topology.SENTINEL else _PORT
        return found[1].strip("[]"), int(found[2] or default)

    def _socket_path(self) -> str:
        if self._parts.netloc.rpartition("@")[2] or len(self._parts.path) < 2:
            raise ValueError("must have an absolute path: unix:///path/to/socket")
        return unquote(self._parts.path)

    def _master(self) -> str:
        if not self._folders or not self._folders[0]:
            raise ValueError("must name the master: redis+sentinel://host:port/master")
        return self._folders.pop(0)

    def _database(self) -> int:
        if self._topology is Topology.SOCKET:
            text = self._parameters.pop("db", "0")
        else:
            text = "/".join(self._folders) or "0"
        if not text.isdecimal() or (self._topology is Topology.CLUSTER and text != "0"):
            raise ValueError(
                "must not name a database: a cluster has none"
                if self._topology is Topology.CLUSTER
                else "must have a number as its database"
            )
        return int(text)

    def _sentinel_parameter(self, name: str) -> str | None:
        return self._parameters.pop(name, None) if self._topology is Topology.SENTINEL else None

    def _tls(self) -> dict[str, Any]:
        given = {
            name: self._parameters.pop(name) for name in _TLS_PARAMETERS if name in self._parameters
        }
        if "ssl_keyfile" in given and "ssl_certfile" not in given:
            raise ValueError("must have ssl_certfile together with ssl_keyfile")
        level = given.get("ssl_cert_reqs", "required")
        if level not in ("required", "optional", "none"):
            raise ValueError("must have ssl_cert_reqs=required, optional or none")
        checked = given.get("ssl_check_hostname", "false" if level == "none" else "true")
        if checked not in _BOOLEANS:
            raise ValueError("must have ssl_check_hostname=true or false")
        return {**given, "ssl_cert_reqs": level, "ssl_check_hostname": _BOOLEANS[checked]}
