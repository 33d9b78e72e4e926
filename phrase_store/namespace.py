"""The phrases of one model and tenant: an index, followed from and told to the other processes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from draftloop.phrase import Phrase
from phrase_store.config import PhraseSettings
from phrase_store.exchange import Exchange
from phrase_store.index import PhraseIndex
from phrase_store.intake import Intake
from phrase_store.log import is_shared
from phrase_store.outage import Outage
from phrase_store.replication import LinkFigures
from phrase_store.successors import SuccessorTable


def namespace_name(model_fingerprint: str, tenant: str) -> str:
    """Phrases are a model's words and a tenant's text: nobody else reads them."""
    return f"{model_fingerprint}:{tenant}"


def owners_of(name: str) -> tuple[str, str]:
    """The model's fingerprint and the tenant, of a namespace's name."""
    model_fingerprint, _, tenant = name.partition(":")
    return model_fingerprint, tenant


@dataclass(slots=True, kw_only=True)
class NamespaceFigures(LinkFigures):
    """A namespace in this process: its index, and counts since it was first used."""

    entries: int  # continuations known
    bytes: int  # memory that the index may come to use
    evictions: int
    waiting: int  # phrases to be written to the log
    replayed: bool  # what the log held at the start is here
    reachable: bool  # the last calls to the log went well
    log_age_s: float  # since the log was last read


class Namespace:
    """Phrases of one model and tenant; any thread may call anything.

    Where the log is nobody else's there is none: it would be memory that nobody reads.
    """

    def __init__(
        self, name: str, settings: PhraseSettings, vocabulary_size: int, outage: Outage
    ) -> None:
        self.name = name
        self.index = PhraseIndex(max_bytes=settings.phrases_mib << 20)
        self._link_figures = LinkFigures()
        self._intake = Intake(self.index, self._link_figures, vocabulary_size)
        self._exchange: Exchange | None = None
        if is_shared(settings.phrases_url):
            self._exchange = Exchange(name, settings, self._intake, self._link_figures, outage)
        else:
            threading.Thread(target=self._intake.prepare, daemon=True).start()

    def publish(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Takes phrases of request `origin` (64 bits) into this process and into all others.

        Returns at once. No other process may publish what a request says: whoever did passes over
        all that comes by the log under its number.
        """
        self._intake.learn(origin, phrases)
        if self._exchange is not None:
            self._exchange.put(origin, phrases)

    def wait_replayed(self, timeout_s: float) -> bool:
        """Whether what the log held at the start is here, waiting at most so long for it."""
        return self._exchange is None or self._exchange.wait_replayed(timeout_s)

    def figures(self) -> NamespaceFigures:
        """For metrics."""
        exchange = self._exchange
        return NamespaceFigures(
            **dataclasses.asdict(self._link_figures),
            entries=self.index.entries,
            bytes=self.index.bytes,
            evictions=self.index.evictions,
            waiting=exchange.waiting if exchange else 0,
            replayed=exchange is None or exchange.replayed,
            reachable=exchange is None or exchange.reachable,
            log_age_s=exchange.silence_s if exchange else 0.0,
        )

    def successors(self, vocabulary_size: int) -> SuccessorTable:
        """The target's successors of every token, as this process's requests have seen them."""
        if self._intake.successors is None:
            self._intake.successors = SuccessorTable(vocabulary_size)
        return self._intake.successors

    def ask_to_stop(self) -> None:
        """Begins what `close` waits for."""
        if self._exchange is not None:
            self._exchange.ask_to_stop()

    def close(self) -> None:
        """Ends the threads, frees the connections and the memory, whoever still looks in here."""
        self.ask_to_stop()
        self.index.let_go()
        if self._exchange is not None:
            self._exchange.close()
