"""What a service says of its phrases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PhraseStoreInfo:
    """All namespaces of a process together; nothing in it is a secret.

    A namespace's log is connected to when the namespace is first used, and not before.
    """

    kind: str  # of the log: the scheme of its URL
    namespaces: int  # in use
    unreachable_namespaces: int  # whose last calls to the log failed
    replaying_namespaces: int  # that do not have yet what the log held at the start
    most_namespaces: int
    records_read: int  # from the log, since the start
    entries: int  # continuations known
    bytes: int  # memory that the indexes may come to use
    most_namespace_bytes: int  # for one namespace
