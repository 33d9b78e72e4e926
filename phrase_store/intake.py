"""How phrases enter a namespace's index: from this process's requests, and from the log."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from draftloop.phrase import Phrase
from phrase_store import unpack
from phrase_store.index import PhraseIndex
from phrase_store.replication import LinkFigures
from phrase_store.successors import SuccessorTable

# Latest requests of this process, whose phrases are not counted again when read from the log.
REMEMBERED_ORIGINS = 4096


class Intake:
    """Counts phrases into an index, once each. Thread-safe.

    A namespace's threads refer to this object and not to the namespace, which refers to them. A
    reference cycle would keep an index of many MiB alive until the garbage collector runs, which
    may be never.
    """

    def __init__(self, index: PhraseIndex, figures: LinkFigures, vocabulary_size: int) -> None:
        self._index = index
        self._vocabulary_size = vocabulary_size
        self._figures = figures
        self.successors: SuccessorTable | None = None  # cleared together with the phrases
        # Drops the phrases that wait to be written to the log: they are older than a clearing.
        self.discard_waiting: Callable[[], None] = lambda: None
        self._origins: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()

    def learn(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Counts phrases of request `origin` (64 bits); `take` ignores its records from now on."""
        self._remember(origin)
        self._index.insert(phrases)

    def take(self, records: Sequence[bytes]) -> None:
        """Counts records from the log, except those of requests that `learn` was called for."""
        unpacked = unpack.unpack(records, self._origins, self._vocabulary_size)
        if unpacked.cleared:
            self.forget()
        unpack.count_into(self._index, unpacked.phrases)
        self._figures.skipped += unpacked.skipped
        self._figures.received += unpacked.phrases.contexts.size

    def forget(self) -> None:
        """Forgets everything learned so far."""
        self.discard_waiting()
        self._index.clear()
        if self.successors is not None:
            self.successors.clear()

    def _remember(self, origin: int) -> None:
        with self._lock:
            self._origins[origin] = None
            self._origins.move_to_end(origin)
            if len(self._origins) > REMEMBERED_ORIGINS:
                self._origins.popitem(last=False)
