"""The exchange of a namespace's phrases with other processes."""

from __future__ import annotations

from collections.abc import Sequence

from draftloop.phrase import Phrase
from phrase_store.config import PhraseSettings
from phrase_store.intake import Intake
from phrase_store.log import LogOptions, open_log
from phrase_store.outage import Outage
from phrase_store.replication import Follower, LinkFigures, Publisher

STOP_S = 0.5


class Exchange:
    """A namespace's log, and two threads: one writes to it, one reads it into `intake`."""

    def __init__(
        self,
        name: str,
        settings: PhraseSettings,
        intake: Intake,
        figures: LinkFigures,
        outage: Outage,
    ) -> None:
        options = LogOptions(
            max_length=settings.phrases_records,
            connect_timeout_s=settings.phrases_timeout_s,
            operation_timeout_s=settings.phrases_timeout_s,
        )
        self._log = open_log(settings.phrases_url, name, options)
        self._publisher = Publisher(self._log, figures, outage, name)
        intake.discard_waiting = self._publisher.discard
        self._follower = Follower(
            self._log,
            intake.take,
            figures,
            outage,
            name,
            forget=intake.forget,
        )

    def put(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Queues phrases for other processes; returns immediately."""
        self._publisher.put(origin, phrases)

    @property
    def waiting(self) -> int:
        """Number of phrases waiting to be written."""
        return self._publisher.waiting

    @property
    def replayed(self) -> bool:
        """Whether everything that the log held at the start has been read."""
        return self._follower.replayed.is_set()

    def wait_replayed(self, timeout_s: float) -> bool:
        """Like `replayed`, but waits for it, at most `timeout_s`."""
        return self._follower.replayed.wait(timeout_s)

    @property
    def reachable(self) -> bool:
        """Whether the latest calls to the log succeeded."""
        return self._publisher.link.reachable and self._follower.link.reachable

    @property
    def silence_s(self) -> float:
        """Seconds since the log was last read."""
        return self._follower.link.silence_s

    def ask_to_stop(self) -> None:
        """Asks the threads to stop; `close` waits for them."""
        self._publisher.ask_to_stop()
        self._follower.ask_to_stop()

    def close(self) -> None:
        """Ends the threads and frees the connections."""
        self._publisher.stop(STOP_S)
        self._follower.stop(STOP_S)
        self._log.close()
