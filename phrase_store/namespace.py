"""The phrases of one model and tenant: an index, and its exchange with other processes."""

from __future__ import annotations

import dataclasses
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
    """The name of the namespace of one model and one tenant, who alone read its phrases."""
    return f"{model_fingerprint}:{tenant}"


def owners_of(name: str) -> tuple[str, str]:
    """The model fingerprint and the tenant in a namespace's name."""
    model_fingerprint, _, tenant = name.partition(":")
    return model_fingerprint, tenant


@dataclass(slots=True, kw_only=True)
class NamespaceFigures(LinkFigures):
    """Figures of a namespace in this process: its index, and counts since it was opened."""

    entries: int  # continuations in the index
    bytes: int  # memory of the index in use
    evictions: int
    waiting: int  # phrases to be written to the log
    replayed: bool  # whether everything that the log held at the start has been read
    reachable: bool  # whether the latest calls to the log succeeded
    log_age_s: float  # since the log was last read


class Namespace:
    """Phrases of one model and tenant. Thread-safe.

    A log that no other process can open is not written: nobody would read it.
    """

    def __init__(
        self, name: str, settings: PhraseSettings, vocabulary_size: int, outage: Outage
    ) -> None:
        self.name = name
        self.index = PhraseIndex(max_bytes=settings.phrases_mib << 20, grows=True)
        self._link_figures = LinkFigures()
        self._intake = Intake(self.index, self._link_figures, vocabulary_size)
        self._exchange: Exchange | None = None
        if is_shared(settings.phrases_url):
            self._exchange = Exchange(name, settings, self._intake, self._link_figures, outage)

    def publish(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Adds phrases of request `origin` (64 bits) here, and to all other processes via the log.

        Returns immediately. Only one process may publish the phrases of a request, since a process
        ignores all log records of requests that it published itself.
        """
        self._intake.learn(origin, phrases)
        if self._exchange is not None:
            self._exchange.put(origin, phrases)

    def wait_replayed(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` until the log's initial records are read; whether they are."""
        return self._exchange is None or self._exchange.wait_replayed(timeout_s)

    def figures(self) -> NamespaceFigures:
        """Current figures, for metrics."""
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
        """The table of the target's successors of every token, from requests of this process."""
        if self._intake.successors is None:
            self._intake.successors = SuccessorTable(vocabulary_size)
        return self._intake.successors

    def ask_to_stop(self) -> None:
        """Asks the threads to stop; `close` waits for them."""
        if self._exchange is not None:
            self._exchange.ask_to_stop()

    def close(self) -> None:
        """Ends the threads and frees connections and memory, even if sessions still read it."""
        self.ask_to_stop()
        self.index.free()
        if self._exchange is not None:
            self._exchange.close()
