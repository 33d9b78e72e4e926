"""The threads between one namespace's index and its log; requests never wait for them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from draftloop import logs
from draftloop.phrase import Phrase
from phrase_store.breaker import BreakerPolicy, BreakerState, CircuitBreaker
from phrase_store.log import START, Entry, LogDenied, LogRefused, LogUnavailable, PhraseLog
from phrase_store.outage import LogConnection, Outage
from phrase_store.records import ORIGIN_LIMIT, encode_all, is_recordable, joined

# Maximum phrases waiting to be written; further ones are dropped, and counted as such.
MAX_WAITING = 10_000
# Phrases are collected for so long and written together, which saves writes and lets phrases of
# consecutive rounds be merged.
GATHER_S = 0.2
READ_RECORDS = 1024
FOLLOW_S = 1.0
# Seconds between checks for a clearing of the log. Regular reads also keep its key from being
# evicted by a server that is short of memory.
CLEARINGS_S = 30.0
PROGRESS_S = 1.0
# Seconds after its last failure from which an unused link no longer counts as lost.
FORGOTTEN_S = 30.0

log = logs.get(__name__)


@dataclass(slots=True)
class LinkFigures:
    """Counts since the start."""

    published: int = 0  # phrases written
    dropped: int = 0  # phrases not written: log gone or slow, namespace evicted or cleared
    received: int = 0  # phrases of other processes
    records_read: int = 0  # including this process's own
    skipped: int = 0  # records that are foreign or damaged
    failures: int = 0  # calls to the log that failed


class Link:
    """One thread's connection to the log, for its `task`: a circuit breaker, and counts."""

    def __init__(
        self, figures: LinkFigures, policy: BreakerPolicy, outage: Outage, task: str
    ) -> None:
        self._figures = figures
        self._breaker = CircuitBreaker(policy)
        self._outage = outage
        self.task = task
        self._refused = False  # whether the last failure was a refusal
        self._closing = False  # failures are ignored from then on
        self._answered = self._failed_at = time.monotonic()

    @property
    def reachable(self) -> bool:
        """Whether calls succeed, as far as is known: without phrases to write, none are made."""
        closed = self._breaker.state is BreakerState.CLOSED
        return closed or time.monotonic() - self._failed_at > FORGOTTEN_S

    def recovers_with(self, other: LogConnection) -> bool:
        """Whether calls here are expected to succeed too, now that `other`'s have.

        If writing was refused, a successful read does not show that writing works. Otherwise, with
        a read-only replica in the log's place, every request after a pause would log that the log
        is back, and then that it is lost. A closed link is not asked whether it is reachable, as it
        makes no more calls.
        """
        same = isinstance(other, Link) and other.task == self.task
        return (self._closing or self.reachable) and (same or not self._refused)

    @property
    def silence_s(self) -> float:
        """Seconds since the last successful call, or since the start."""
        return time.monotonic() - self._answered

    def wait_s(self) -> float:
        """Seconds until the next call makes sense."""
        return self._breaker.wait_s()

    def try_call(self, call: Callable[[], None]) -> bool:
        """Makes the call unless the breaker is open; whether it was made and succeeded.

        Raises nothing: a thread that dies would stop the exchange. Of unexpected errors only the
        type is logged, because their text may quote a record.
        """
        if not self._breaker.allows_call():
            return False
        try:
            call()
        except LogUnavailable as error:
            refused, denied = isinstance(error, LogRefused), isinstance(error, LogDenied)
            self._failed(str(error), refused=refused, answered=refused or denied)
        except Exception as error:
            self._failed(f"unexpected {type(error).__name__}")
        else:
            self._answered = time.monotonic()
            self._breaker.record_success()
            self._outage.call_succeeded(self)
            return True
        return False

    def record_answer(self) -> None:
        """Records that the log answers, within a call that goes on: if that fails, it is anew."""
        self._answered = time.monotonic()
        self._breaker.record_success()

    def close(self) -> None:
        """Ignores failures from now on."""
        self._closing = True
        self._outage.remove(self)

    def _failed(self, reason: str, *, refused: bool = False, answered: bool = False) -> None:
        if self._closing:
            return
        self._refused = refused
        self._figures.failures += 1
        self._failed_at = time.monotonic()
        self._breaker.record_failure()
        if self._breaker.state is not BreakerState.CLOSED:
            self._outage.call_failed(self, self.task, reason, answered=answered)


class Publisher:
    """Writes phrases in the background, those of several requests together."""

    def __init__(
        self, phrase_log: PhraseLog, figures: LinkFigures, outage: Outage, name: str
    ) -> None:
        self._log = phrase_log
        self._figures = figures
        self.link = Link(figures, BreakerPolicy(), outage, "write")
        self._waiting: deque[tuple[int, Phrase]] = deque()
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"publish-{name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of phrases waiting to be written."""
        return len(self._waiting)

    def put(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Queues phrases; returns immediately."""
        holds = 0 <= origin < ORIGIN_LIMIT and not self._stopping.is_set()
        for phrase in phrases:
            if holds and len(self._waiting) < MAX_WAITING and is_recordable(phrase):
                self._waiting.append((origin, phrase))
            else:
                self._figures.dropped += 1
        self._wanted.set()

    def discard(self) -> None:
        """Drops the phrases that wait to be written: the namespace was cleared after they came."""
        with contextlib.suppress(IndexError):  # the thread may empty the queue meanwhile
            while True:
                self._waiting.popleft()
                self._figures.dropped += 1

    def ask_to_stop(self) -> None:
        """Drops phrases that are put from now on, and asks the thread to stop."""
        self.link.close()
        self._stopping.set()
        self._wanted.set()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread, which first writes the waiting phrases, within `timeout_s`."""
        self.ask_to_stop()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            self._stopping.wait(max(GATHER_S, self.link.wait_s()))
            self._wanted.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        batches: dict[int, list[Phrase]] = {}
        with contextlib.suppress(IndexError):  # all are read, or discarded meanwhile
            while True:
                origin, phrase = self._waiting.popleft()
                batches.setdefault(origin, []).append(phrase)
        runs = {origin: joined(phrases) for origin, phrases in batches.items()}
        records = [record for origin in runs for record in encode_all(origin, runs[origin])]
        if not records:
            return
        count = sum(map(len, runs.values()))
        if self.link.try_call(lambda: self._log.append(records)):
            self._figures.published += count
        else:
            self._figures.dropped += count


class Follower:
    """Reads the log: first what it already holds, then new records as they come."""

    def __init__(
        self,
        phrase_log: PhraseLog,
        take: Callable[[Sequence[bytes]], None],
        figures: LinkFigures,
        outage: Outage,
        name: str,
        *,
        forget: Callable[[], None],
    ) -> None:
        """`take` and `forget` run on one thread, `forget` if a clearing was missed."""
        self._log = phrase_log
        self._take = take
        self._forget = forget
        self._figures = figures
        self.link = Link(figures, BreakerPolicy(failures=1), outage, "read")
        self._position = START
        self._next_clearing_check = time.monotonic() + CLEARINGS_S
        self._at_once = READ_RECORDS  # fewer if so many take too long to arrive
        self._replay_began: float | None = None
        self._replay_records = 0
        self._stopping = threading.Event()
        self.replayed = threading.Event()
        self._name = name
        self._thread = threading.Thread(target=self._run, name=f"follow-{name}", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Asks the thread to stop after its current call to the log."""
        self.link.close()
        self._stopping.set()

    def stop(self, timeout_s: float) -> None:
        """Waits for the thread's end, at most `timeout_s`; it may still be in its last read."""
        self.ask_to_stop()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self.link.try_call(self._read_next):
                self._next_clearing_check = (
                    0.0  # a clearing's record may have been dropped meanwhile
                )
                self._at_once = max(1, self._at_once // 2)
                self._stopping.wait(self.link.wait_s())

    def _read_next(self) -> None:
        if time.monotonic() > self._next_clearing_check:
            self._check_clearing()
            self._next_clearing_check = time.monotonic() + CLEARINGS_S
        if self.replayed.is_set():
            self._follow()
        else:
            self._replay()

    def _check_clearing(self) -> None:
        """Forgets everything if a clearing was missed, as its record may have been dropped."""
        cleared = self._log.cleared(self._position)
        if cleared is not None:
            self._forget()
            self._position = cleared

    def _follow(self) -> None:
        entries = self._log.follow(self._position, self._at_once, FOLLOW_S)
        self._take_all(entries)
        if not entries:
            self._position = self._log.resume(self._position)

    def _replay(self) -> None:
        """Reads what was written before this process started; logs the progress every second.

        Reads the next records while the previous ones are counted. After a failure, the next call
        continues where this one stopped.
        """
        total, last_log = self._log.length(), time.monotonic()
        if self._replay_began is None:
            self._replay_began = last_log
        with ThreadPoolExecutor(1, f"replay-{self._name}") as reader:
            entries = self._log.read(self._position, self._at_once)
            while entries and not self._stopping.is_set():
                more = reader.submit(self._log.read, entries[-1].position, self._at_once)
                self._take_all(entries)
                self._replay_records += len(entries)
                if time.monotonic() - last_log > PROGRESS_S:
                    last_log = time.monotonic()
                    log.info("replaying phrases", namespace=self._name,
                             records=self._replay_records, of=total)  # fmt: skip
                entries = more.result()
        seconds = round(time.monotonic() - self._replay_began, 2)
        self.replayed.set()
        if self._replay_records:
            # Logged at debug level if quick: with too many tenants every request may reopen one.
            write_log = log.info if seconds > PROGRESS_S else log.debug
            write_log("replayed phrases", namespace=self._name, records=self._replay_records,
                 seconds=seconds, phrases=self._figures.received)  # fmt: skip

    def _take_all(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._figures.records_read += len(entries)
            self._take([entry.record for entry in entries])
            self._position = entries[-1].position
            self._at_once = min(READ_RECORDS, 2 * self._at_once)
            self.link.record_answer()
