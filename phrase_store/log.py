"""Phrase logs: one bounded, append-only sequence of records per namespace, shared by processes."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

from draftloop.errors import DraftloopError, InvalidInput
from phrase_store.redis_url import masked

START = ""  # the position before the first record
# Modules that implement `Backend`, by URL scheme. They are imported when needed: a process that
# uses memory:// never imports a Redis client.
_BACKENDS = {
    "memory": "phrase_store.memory_log",
    "redis": "phrase_store.redis_log",
    "rediss": "phrase_store.redis_log",
    "unix": "phrase_store.redis_log",
    "redis+cluster": "phrase_store.redis_log",
    "rediss+cluster": "phrase_store.redis_log",
    "redis+sentinel": "phrase_store.redis_log",
    "rediss+sentinel": "phrase_store.redis_log",
}


class LogUnavailable(DraftloopError):
    """A call to the log failed or timed out; another attempt may succeed."""


class LogRefused(LogUnavailable):
    """The log refused a call: it is full, it is a read-only replica, or a permission is missing."""


class LogDenied(LogUnavailable):
    """The log does not let us in: another user or password than ours is wanted."""


class Entry(NamedTuple):
    """A record and its position. Positions are opaque and increase along a log."""

    position: str
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Bounds of a log; times in seconds."""

    max_length: int = 50_000  # records kept, roughly: the oldest are dropped in blocks
    connect_timeout_s: float = 0.05
    operation_timeout_s: float = 0.05


class PhraseLog(ABC):
    """The log of one namespace.

    All methods but `close` may raise LogUnavailable. One thread may append while another reads.
    Calls block, so they do not belong on an event loop.
    """

    @abstractmethod
    def append(self, records: Sequence[bytes]) -> None:
        """Adds records at the end. If it raises, some of them may have been added."""

    @abstractmethod
    def read(self, after: str, limit: int) -> list[Entry]:
        """The oldest records after a position; fewer than `limit` only at the log's end.

        Does not wait for records.
        """

    @abstractmethod
    def follow(self, after: str, limit: int, timeout_s: float) -> list[Entry]:
        """Like `read`, but waits for a record, at most `timeout_s` and perhaps less."""

    def resume(self, after: str) -> str:
        """The position to continue from when nothing follows `after`.

        That is `after`, unless the log now ends before it. If the log only lost its newest records,
        reading continues at its end, as the rest has been read. If it is a different log, judged by
        the positions read here, reading continues at its beginning.
        """
        return after

    def cleared(self, after: str) -> str | None:
        """The position of the last clearing if it is after `after`, else None.

        For readers that lost the connection: the clearing's record may have been dropped since.
        """
        return None

    @abstractmethod
    def length(self) -> int:
        """Number of records held."""

    @abstractmethod
    def clear(self, word: bytes) -> None:
        """Adds `word`, the record that says the log was cleared, and drops all before it."""

    @abstractmethod
    def close(self) -> None:
        """Frees connections. To be called last, from any thread."""


class Backend(Protocol):
    """The interface of a module that implements logs."""

    def check(self, url: str) -> None:
        """Raises InvalidInput for a URL that breaks the rules; connects to nothing."""

    def check_files(self, url: str) -> None:
        """Raises InvalidInput for a URL that names unusable files."""

    def connect(self, url: str, namespace: str, options: LogOptions) -> PhraseLog:
        """The log; connects when it is first used."""

    def namespaces(self, url: str, options: LogOptions) -> list[str]:
        """Names of the namespaces that have a log, sorted."""


def check_url(url: str) -> None:
    """Raises InvalidInput for a URL that breaks the rules; connects to nothing."""
    _backend(url).check(url)


def check_usable(url: str) -> None:
    """Like `check_url`; also raises InvalidInput if files that the URL names are unusable now."""
    check_url(url)
    _backend(url).check_files(url)


def kind_of(url: str) -> str:
    """The URL's scheme in lower case, which is the only part that is no secret."""
    return url.partition("://")[0].lower()


def is_shared(url: str) -> bool:
    """Whether other stores can open the same log. `memory://` without a name is private."""
    return kind_of(url) != "memory" or bool(url.partition("://")[2])


def open_log(url: str, namespace: str, options: LogOptions) -> PhraseLog:
    """The log of a namespace; connects when it is first used.

    Raises InvalidInput for a URL that breaks the rules: see `redis_url` for the forms, besides
    `memory://name` (shared within this process, for tests).
    """
    return _backend(url).connect(url, namespace, options)


def list_namespaces(url: str, options: LogOptions) -> list[str]:
    """Names of the namespaces that have a log; raises InvalidInput and LogUnavailable."""
    return _backend(url).namespaces(url, options)


def _backend(url: str) -> Backend:
    name = _BACKENDS.get(kind_of(url))
    if "://" not in url or name is None:
        rule = f"must start with one of {', '.join(f'{known}://' for known in _BACKENDS)}"
        raise InvalidInput("phrases_url", rule, masked(url))
    return cast(Backend, importlib.import_module(name))
