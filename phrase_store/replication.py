"""The threads between one namespace's index and its log; requests never wait for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftloop import logs
from draftloop.phrase import Phrase
from phrase_store.breaker import BreakerPolicy, CircuitBreaker
from phrase_store.log import START, Entry, LogUnavailable, PhraseLog
from phrase_store.records import Batch, decode, encode_all, encode_cleared, is_recordable

# Phrases waiting to be written; beyond it new ones are dropped and counted.
MOST_WAITING = 10_000
# One write for what comes in so many seconds: a round is not a write.
GATHER_S = 0.02
READ_RECORDS = 512
FOLLOW_S = 1.0
PROGRESS_S = 1.0

log = logs.get(__name__)


@dataclass(slots=True)
class LinkFigures:
    """Counts since the start."""

    published: int = 0  # phrases written
    dropped: int = 0  # phrases that were not, because the log was gone or slow
    received: int = 0  # phrases of other processes
    skipped: int = 0  # records that are foreign or damaged
    failures: int = 0  # calls to the log that failed


class Publisher:
    """Writes phrases in the background, several requests' in one go."""

    def __init__(self, phrase_log: PhraseLog, figures: LinkFigures, name: str) -> None:
        self._log = phrase_log
        self._figures = figures
        self._breaker = CircuitBreaker(BreakerPolicy())
        self._waiting: deque[tuple[int, Phrase]] = deque()
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._cleared = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"publish-{name}", daemon=True)
        self._thread.start()

    def put(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Queues phrases; returns at once."""
        for phrase in phrases:
            if len(self._waiting) >= MOST_WAITING or not is_recordable(phrase):
                self._figures.dropped += 1
            else:
                self._waiting.append((origin, phrase))
        self._wanted.set()

    def put_cleared(self) -> None:
        """Queues the word that all before is void; what waits is dropped."""
        self._waiting.clear()
        self._cleared.set()
        self._wanted.set()

    def stop(self, timeout_s: float) -> None:
        """Writes what waits, if that goes quickly, and ends the thread."""
        self._stopping.set()
        self._wanted.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            self._stopping.wait(max(GATHER_S, self._breaker.wait_s()))
            self._wanted.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        batches: dict[int, list[Phrase]] = {}
        count = 0
        while self._waiting:
            origin, phrase = self._waiting.popleft()
            batches.setdefault(origin, []).append(phrase)
            count += 1
        records = [record for origin, known in batches.items() for record in
                   encode_all(origin, known)]  # fmt: skip
        if self._cleared.is_set():
            records.insert(0, encode_cleared())
        if not records:
            return
        if not self._breaker.admits():
            self._figures.dropped += count
            return
        try:
            if self._cleared.is_set():
                self._log.clear()
            self._log.append(records)
        except LogUnavailable as error:
            self._figures.dropped += count
            self._figures.failures += 1
            if self._breaker.failed():
                log.warning("phrase log lost", reason=str(error))
            return
        self._cleared.clear()
        self._figures.published += count
        if self._breaker.succeeded():
            log.info("phrase log back")


class Follower:
    """Reads what others wrote: all of it at first, then as it comes."""

    def __init__(
        self,
        phrase_log: PhraseLog,
        take: Callable[[Sequence[Batch]], None],
        figures: LinkFigures,
        name: str,
    ) -> None:
        self._log = phrase_log
        self._take = take
        self._figures = figures
        self._breaker = CircuitBreaker(BreakerPolicy(failures=1))
        self._position = START
        self._stopping = threading.Event()
        self.replayed = threading.Event()
        self._name = name
        self._thread = threading.Thread(target=self._run, name=f"follow-{name}", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread, which may hang in a last read for a moment."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._breaker.admits():
                self._stopping.wait(self._breaker.wait_s())
                continue
            try:
                if self.replayed.is_set():
                    self._take_all(self._log.follow(self._position, READ_RECORDS, FOLLOW_S))
                else:
                    self._replay()
            except LogUnavailable:
                self._figures.failures += 1
                self._breaker.failed()
                continue
            self._breaker.succeeded()

    def _replay(self) -> None:
        """What was written before this process began, with a line a second of how it goes."""
        total, records, began = self._log.length(), 0, time.monotonic()
        told = began
        while not self._stopping.is_set():
            entries = self._log.read(self._position, READ_RECORDS)
            self._take_all(entries)
            records += len(entries)
            if len(entries) < READ_RECORDS:
                break
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                log.info("replaying phrases", namespace=self._name, records=records, of=total)
        seconds = round(time.monotonic() - began, 2)
        self.replayed.set()
        if records:
            log.info("replayed phrases", namespace=self._name, records=records, seconds=seconds,
                     phrases=self._figures.received)  # fmt: skip

    def _take_all(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        batches = [decode(entry.record) for entry in entries]
        known = [batch for batch in batches if batch is not None]
        self._figures.skipped += len(batches) - len(known)
        self._take(known)
        self._position = entries[-1].position
