"""The way of phrases into a namespace's index: from requests here, and from others by the log."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from draftloop.phrase import Phrase
from phrase_store import unpack
from phrase_store.index import PhraseIndex
from phrase_store.replication import LinkFigures
from phrase_store.successors import SuccessorTable

# Requests of this process whose phrases are not counted again when they come by the log.
REMEMBERED_ORIGINS = 4096


class Intake:
    """Counts phrases into an index, once each; any thread may call anything.

    It is what a namespace's threads hold, and not the namespace, which holds them: in a circle an
    index of many MiB would stay until Python looks for circles, which may be never.
    """

    def __init__(self, index: PhraseIndex, figures: LinkFigures, vocabulary_size: int) -> None:
        self._index = index
        self._vocabulary_size = vocabulary_size
        self._figures = figures
        self.successors: SuccessorTable | None = None  # what is forgotten with the phrases
        self._origins: OrderedDict[int, None] = OrderedDict()
        self._door = threading.Lock()

    def prepare(self) -> None:
        """Has the system give the index its memory, before anybody has to wait for it."""
        self._index.touch()

    def learn(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Takes in phrases of request `origin` (64 bits), which nobody else tells of, by itself."""
        self._remember(origin)
        self._index.insert(phrases)

    def take(self, records: Sequence[bytes]) -> None:
        """Takes in what comes from the log, but for what was learned here."""
        said = unpack.unpack(records, self._origins, self._vocabulary_size)
        if said.cleared:
            self.forget()
        unpack.count_into(self._index, said.runs)
        self._figures.skipped += said.skipped
        self._figures.received += said.runs.contexts.size

    def forget(self) -> None:
        """Makes void all that came before."""
        self._index.clear()
        if self.successors is not None:
            self.successors.clear()
        self._index.touch()

    def _remember(self, origin: int) -> None:
        with self._door:
            self._origins[origin] = None
            self._origins.move_to_end(origin)
            if len(self._origins) > REMEMBERED_ORIGINS:
                self._origins.popitem(last=False)
