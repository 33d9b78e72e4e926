"""A service's description of its phrase store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PhraseStoreInfo:
    """State of all namespaces of a process together; contains no secrets.

    A connection to the log is opened when a namespace is first used.
    """

    kind: str  # of the log: the scheme of its URL
    namespaces: int  # in use
    unreachable_namespaces: int  # whose last calls to the log failed
    replaying_namespaces: int  # that have not yet read what the log held at the start
    most_namespaces: int
    records_read: int  # from the log, since the start
    entries: int  # continuations known
    bytes: int  # memory that the indexes may grow to
    most_namespace_bytes: int  # for one namespace
