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
# Modules with `check`, `connect` and `namespaces`, by the scheme of the URL. They are loaded when
# needed: a process that keeps to memory:// never loads a Redis client.
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
    """The log did not do what was asked, or not in time; another attempt may succeed."""


class LogRefused(LogUnavailable):
    """The log answered that it will not: it has no room or is a replica, or for want of a right."""


class LogDenied(LogUnavailable):
    """The log does not let us in: another user or password than ours is wanted."""


class Entry(NamedTuple):
    """A record and its place; positions are opaque, and grow along one log."""

    position: str
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Bounds of a log; times in seconds."""

    max_length: int = 50_000  # records kept, roughly: the oldest go in blocks
    connect_timeout_s: float = 0.05
    operation_timeout_s: float = 0.05


class PhraseLog(ABC):
    """The log of one namespace.

    Everything but `close` may raise LogUnavailable. One thread may append while another reads;
    nothing here is for an event loop.
    """

    @abstractmethod
    def append(self, records: Sequence[bytes]) -> None:
        """Adds records at the end, all or, where it raises, perhaps some."""

    @abstractmethod
    def read(self, after: str, limit: int) -> list[Entry]:
        """The oldest records after a position, at once; fewer than `limit` only at the end."""

    @abstractmethod
    def follow(self, after: str, limit: int, timeout_s: float) -> list[Entry]:
        """Like `read`, but waits for a record, at most `timeout_s` and perhaps less."""

    def resume(self, after: str) -> str:
        """Where to go on where nothing follows `after`: there, unless the log's end is before it.

        A log that lost its newest records goes on at its end, for what is left was read. One that
        is another, by what was read here, goes on at its beginning.
        """
        return after

    def cleared(self, after: str) -> str | None:
        """The place of the last word that all before is void, where that is behind `after`.

        For who was cut off: the word is a record, and may have been dropped since.
        """
        return None

    @abstractmethod
    def length(self) -> int:
        """Records held."""

    @abstractmethod
    def clear(self, word: bytes) -> None:
        """Adds a record, the word that all before is void, and drops what is before it."""

    @abstractmethod
    def close(self) -> None:
        """Frees connections; call it last, from any thread."""


class Backend(Protocol):
    """What a module that keeps logs offers."""

    def check(self, url: str) -> None:
        """Raises InvalidInput for a URL that breaks the rules; connects to nothing."""

    def check_files(self, url: str) -> None:
        """Raises InvalidInput for a URL that names files which cannot be used."""

    def connect(self, url: str, namespace: str, options: LogOptions) -> PhraseLog:
        """The log; connects when it is first used."""

    def namespaces(self, url: str, options: LogOptions) -> list[str]:
        """Names of the namespaces that have a log, sorted."""


def check_url(url: str) -> None:
    """Raises InvalidInput for a URL that breaks the rules; connects to nothing."""
    _backend(url).check(url)


def check_usable(url: str) -> None:
    """The same, and for one that names files which cannot be used, as they are now."""
    check_url(url)
    _backend(url).check_files(url)


def kind_of(url: str) -> str:
    """The scheme, in small letters: all of a URL that anybody may know."""
    return url.partition("://")[0].lower()


def is_shared(url: str) -> bool:
    """Whether anybody else may open the log: `memory://` without a name is each store's own."""
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
