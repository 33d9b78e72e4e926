"""The engine: one thread owns the device and gathers the waiting sessions into one forward."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from torch import Tensor

from draftloop import engine_thread, logs
from draftloop.cost_line import cost_line
from draftloop.errors import Unavailable
from draftloop.runtime import metrics
from draftloop.runtime.awaited import Awaited, Outcome
from draftloop.runtime.forward import Forward, Task, Wish
from draftloop.runtime.gathering import Gathering
from draftloop.runtime.job import Job, in_turn
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.prepared import Pass, Passes
from draftloop.runtime.ruin import Ruin, ruins_the_device
from draftloop.runtime.step import Step, prompt_tokens
from draftloop.tree import ServiceTimings

T = TypeVar("T")

# What nobody waits for is done after so long without a job, or when there is so much of it.
QUIET_S = 0.0005
MOST_UNCOUNTED = 64
LONGEST_END_S = 10.0  # of what is running when the engine is to stop
NO_FORWARD = Pass(rows=0, nodes=0, nanoseconds=0)

log = logs.get(__name__)


class Engine:
    """Runs tasks (generators of forwards) on one thread.

    Between forwards new tasks join and finished or cancelled ones leave; all forwards that are
    wished for at that moment on one model, as many as fit a `Step`, run as one. `Passes` run alone.
    `gathering` says how long a forward waits for sessions that are about to ask, `ruin` what
    becomes of an engine whose forwards go on to fail.
    """

    def __init__(self, gathering: Gathering | None = None, ruin: Ruin | None = None) -> None:
        self._ruin = ruin or Ruin(lambda *_: None)  # lives on
        self._gathering = gathering or Gathering(lambda: cost_line(()))  # waits for nobody
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._active: list[Job] = []
        self._uncounted: list[Callable[[], None]] = []
        self._stopping = False
        self._asking: Job | None = None  # whose task has the word
        self._latest = NO_FORWARD  # what those that come in have waited for
        self._begun: float | None = None  # when the forward that is running did
        self.forwards = 0  # that were run: whether the engine moves
        self._door = threading.Lock()  # nothing enters the inbox behind the word to stop
        self._unread = 0  # of the inbox, those that ask for forwards; behind the door too
        self._thread = threading.Thread(target=self._run, name=engine_thread.NAME, daemon=True)
        self._thread.start()

    def submit(
        self, task: Task[T], timings: ServiceTimings | None = None, party: Slot | None = None
    ) -> Future[T]:
        """Queues a task; the future ends with what it returns or raises.

        Cancelling the future stops the task before its next forward.
        """
        future: Future[T] = Future()
        self._put(task, future, timings, party)
        return future

    def awaited(
        self, task: Task[T], timings: ServiceTimings | None = None, party: Slot | None = None
    ) -> Awaited[T]:
        """`submit` for an event loop."""
        outcome: Awaited[T] = Awaited()
        self._put(task, outcome, timings, party)
        return outcome

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function on the engine's thread, between two forwards."""
        future: Future[T] = Future()
        self._put(_as_task(function), future, asks=False)
        return future

    def _put(
        self,
        task: Task[T],
        outcome: Outcome,
        timings: ServiceTimings | None = None,
        party: Slot | None = None,
        *,
        asks: bool = True,
    ) -> None:
        now = time.perf_counter_ns()
        job = Job(task, outcome, timings or ServiceTimings(), now, asks, party)
        with self._door:
            if self._stopping:
                outcome.set_exception(Unavailable("the engine is stopping"))
            else:
                self._unread += asks
                self._inbox.put(job)

    @property
    def forward_began(self) -> float | None:
        """When the forward that is running did, by the monotonic clock; None between forwards."""
        return self._begun

    @property
    def alone(self) -> bool:
        """Whether no task waits beside the one that asks, and no session is worth waiting for.

        To be asked on the engine's thread.
        """
        asking = self._asking
        others = (job for job in self._active if job is not asking)
        waits = not self._inbox.empty() or any(job.wish is not None for job in others)
        return not waits and not self._patience_ns(1, 1, besides=asking.party if asking else None)

    def leaves(self, slot: Slot) -> None:
        """Takes in, on the engine's thread, that a slot's session has ended."""
        self._gathering.gone(slot)

    def _patience_ns(self, waiting: int, rows: int, besides: Slot | None = None) -> float:
        return self._gathering.patience_ns(waiting, rows, time.perf_counter_ns(), besides)

    def stop(self, *, waits: bool = True) -> None:
        """Ends the thread; tasks under way fail with Unavailable.

        Not before what is called on it returns. Who does not wait, or has waited for long, has to
        end the process: see `draftloop.rpc.role`.
        """
        with self._door:
            self._stopping = True
            self._inbox.put(None)
        if waits:
            self._thread.join(LONGEST_END_S)
            if self._thread.is_alive():
                log.error("the engine's thread does not end", waited_s=LONGEST_END_S)

    def _run(self) -> None:
        try:
            while self._admit():
                wishes = self._next_batch()
                if wishes:
                    self._step(wishes)
        except BaseException as error:  # whoever waits for this thread would wait for ever
            log.exception("the engine's thread ends")
            with self._door:
                self._stopping = True
            self._ruin.fallen(error)
            self._abandon(Unavailable("the engine has failed"))
        else:
            self._abandon(Unavailable("the engine is stopping"))

    def _admit(self) -> bool:
        """Takes in what is queued, waiting only if there is nothing else to do, or it pays."""
        while True:
            try:
                job = self._take()
            except queue.Empty:
                return True
            if job is None:
                return False
            with self._door:
                self._unread -= job.asks
            queued = time.perf_counter_ns() - job.submitted_ns
            job.timings.queue_ns += queued
            job.timings.prompts_ns += self._latest.prompts_part(queued)
            if not job.outcome.cancelled():
                self._active.append(job)
                self._advance(job, None)
                if job.wish is not None:
                    self._count(functools.partial(metrics.ENGINE_QUEUE_TIME.observe, queued / 1e9))

    def _take(self) -> Job | None:
        """The next of the inbox. Raises queue.Empty where there is something else to do."""
        if self._active:
            return self._gathered()
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(timeout=QUIET_S if self._uncounted else None)
        self._count_all()
        return self._inbox.get()

    def _gathered(self) -> Job | None:
        """The next of the inbox, if need be of somebody who is worth waiting for."""
        if not self._inbox.empty() or not self._gathering.anybody_away:
            return self._inbox.get_nowait()
        waiting = [job for job in self._active if job.wish is not None]
        patience = self._patience_ns(len(waiting), sum(_rows(job.wish) for job in waiting))
        if not patience:
            raise queue.Empty
        began = time.perf_counter_ns()
        try:
            return self._inbox.get(timeout=patience / 1e9)
        finally:
            waited = time.perf_counter_ns() - began
            for job in waiting:
                job.timings.queue_ns += waited

    def _count(self, count: Callable[[], None]) -> None:
        """Later: behind the answers that somebody waits for."""
        self._uncounted.append(count)
        if len(self._uncounted) >= MOST_UNCOUNTED:
            self._count_all()

    def _count_all(self) -> None:
        for count in self._uncounted:
            count()
        self._uncounted.clear()

    def _next_batch(self) -> list[Job]:
        self._active = [job for job in self._active if self._wanted(job)]
        batch: list[Job] = []
        step: Step | None = None
        for job in in_turn(self._active):
            if isinstance(job.wish, Passes):
                if not batch:
                    return [job]
                continue
            assert job.wish is not None
            if step is not None and not step.takes(job.wish):
                continue
            if job.wish.renewed is not None:
                try:
                    job.wish = job.wish.renewed()
                except Exception as error:  # of a device, which copies what others have computed
                    self._fail_all([job], error)
                    continue
            step = step or Step(job.wish)
            batch.append(job)
        return batch

    def _wanted(self, job: Job) -> bool:
        if job.wish is not None and job.outcome.cancelled():
            job.wish = None
            job.context.run(_close, job.task)
        return job.wish is not None

    def _step(self, batch: list[Job]) -> None:
        self._begun = time.monotonic()
        try:
            done, logits = _run(batch)
        except Exception as error:  # the sessions fail, the engine lives
            self._fail_all(batch, error)
            return
        finally:
            self._begun = None
        self._ruin.passed()
        self.forwards += len(done)
        self._latest = done[-1] if done else NO_FORWARD
        # Those that were served go to the back, so that a full step starves nobody.
        self._active = [job for job in self._active if job not in batch] + batch
        elapsed = sum(forward.nanoseconds for forward in done)
        behind = sum(job.wish is not None for job in self._active) - len(batch) + self._unread
        for job, rows in zip(batch, logits, strict=True):
            job.timings.forward_ns += elapsed
            job.timings.forwards += len(done)
            _book(job, elapsed, self._latest)
            job.timings.batch_size = len(batch)
            job.timings.waiting = behind
            self._advance(job, rows)
        self._count(functools.partial(metrics.observe_forwards, done, len(batch)))

    def _advance(self, job: Job, logits: Tensor | None) -> None:
        self._asking, served = job, job.wish
        try:
            job.wish = next(job.task) if logits is None else job.task.send(logits)
        except StopIteration as finished:
            job.wish = None
            _settle(job.outcome, finished.value)
        except Exception as error:
            self._fail(job, error)
            if ruins_the_device(error):  # what tokens are chosen with runs there, too
                self._ruin.failed(error)
        except BaseException as error:  # a panic in Rust is no Exception, but one session's alone
            job.context.run(log.exception, "a task ended with what is no exception")
            self._fail(job, RuntimeError(f"{type(error).__name__}: {error}"))
        self._asking = None
        self._note(job, served)

    def _note(self, job: Job, served: Wish | None) -> None:
        """Lets the gathering know who has come and who has been served."""
        if served is None and job.wish is not None:
            job.party = job.party or job.wish.slot
            self._gathering.asked(job.party, _rows(job.wish), job.submitted_ns)
        elif served is not None and job.wish is None:
            self._gathering.answered(job.party, time.perf_counter_ns())

    def _fail_all(self, batch: Sequence[Job], error: Exception) -> None:
        """Takes in that a forward failed, or what it begins with."""
        metrics.FORWARD_FAILURES.inc()
        for job in batch:
            self._fail(job, error)
        self._ruin.failed(error)

    def _fail(self, job: Job, error: Exception) -> None:
        job.wish = None
        job.context.run(_close, job.task)
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            job.outcome.set_exception(error)

    def _abandon(self, error: Exception) -> None:
        while not self._inbox.empty():
            job = self._inbox.get()
            if job is not None:
                self._active.append(job)
        for job in self._active:
            self._fail(job, error)


def _rows(wish: Wish | None) -> int:
    """New tokens of a wish; of forwards that are not laid out yet nobody knows."""
    return wish.rows if isinstance(wish, Forward) else 1


def _book(job: Job, elapsed: int, last: Pass) -> None:
    """What the last forward held, and what others' prompts took of the time of all."""
    own = prompt_tokens(job.wish) if isinstance(job.wish, Forward) else 0
    job.timings.batch_rows, job.timings.prompt_rows = last.rows, last.prompt_rows
    job.timings.prompts = last.prompts
    job.timings.prompts_ns += last.prompts_part(elapsed, besides=own)


def _run(batch: Sequence[Job]) -> tuple[Sequence[Pass], Sequence[Tensor | None]]:
    """The forwards that were run, one for all jobs or several for the only one, and the logits."""
    first = batch[0].wish
    if isinstance(first, Passes):
        return first.model.run(first), [None]
    wishes = [job.wish for job in batch if isinstance(job.wish, Forward)]
    started = time.perf_counter_ns()
    logits = wishes[0].model.forward(wishes)
    elapsed = time.perf_counter_ns() - started
    rows = sum(wish.rows for wish in wishes)
    nodes = sum(len(wish.node_token_ids) for wish in wishes)
    prompts = [tokens for tokens in map(prompt_tokens, wishes) if tokens]
    return [Pass(rows, nodes, elapsed, sum(prompts), len(prompts))], logits


def _close(task: Task[Any]) -> None:
    try:
        task.close()
    except BaseException:  # its own clean-up failed; the engine and the others go on
        log.exception("a task failed while it was being closed")


def _settle(outcome: Outcome, value: Any) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
        outcome.set_result(value)


def _as_task(function: Callable[[], T]) -> Task[T]:
    """A task that wants no forward."""
    yield from ()
    return function()
