"""The engine: one thread owns the device and batches the waiting sessions into one forward."""

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
from draftloop.runtime.job import Job, by_response_ratio
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.prepared import Pass, Passes
from draftloop.runtime.ruin import Ruin, is_fatal_to_device
from draftloop.runtime.step import Step, prompt_tokens
from draftloop.tree import ServiceTimings

T = TypeVar("T")

# Metrics are updated after QUIET_S without a job, or once MAX_PENDING_UPDATES updates are due.
QUIET_S = 0.0005
MAX_PENDING_UPDATES = 64
MAX_STOP_S = 10.0  # how long `stop` waits for the running forward
NO_FORWARD = Pass(rows=0, nodes=0, nanoseconds=0)

log = logs.get(__name__)


class Engine:
    """Runs tasks (generators of forwards) on one thread.

    Between forwards, new tasks join, and finished or cancelled ones leave (continuous batching).
    The forwards wished for at that moment on one model run as one, as many as fit a `Step`.
    `Passes` run alone. `gathering` decides how long a forward waits for sessions that are about to
    ask, `ruin` what happens to an engine whose forwards keep failing.
    """

    def __init__(self, gathering: Gathering | None = None, ruin: Ruin | None = None) -> None:
        self._ruin = ruin or Ruin(lambda *_: None)  # default: keeps running
        self._gathering = gathering or Gathering(lambda: cost_line(()))  # default: does not wait
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._active: list[Job] = []
        self._pending_updates: list[Callable[[], None]] = []
        self._stopping = False
        self._current_job: Job | None = None  # the job whose task is running right now
        self._last_forward = NO_FORWARD  # the last forward, which new jobs have waited for
        # Monotonic time at which the running forward began; None between forwards.
        self.forward_began: float | None = None
        self.forwards = 0  # number run so far; shows that the engine makes progress
        self._lock = threading.Lock()  # so that nothing enters the inbox after the stop signal
        self._queued = 0  # jobs in the inbox that need forwards; guarded by `_lock` too
        self._thread = threading.Thread(target=self._run, name=engine_thread.NAME, daemon=True)
        self._thread.start()

    def submit(
        self, task: Task[T], timings: ServiceTimings | None = None, session_slot: Slot | None = None
    ) -> Future[T]:
        """Queues a task; the future gets what it returns or raises.

        Cancelling the future stops the task before its next forward.
        """
        future: Future[T] = Future()
        self._put(task, future, timings, session_slot)
        return future

    def submit_awaitable(
        self,
        task: Task[T],
        timings: ServiceTimings | None = None,
        session_slot: Slot | None = None,
        *,
        is_awaited: bool = True,
    ) -> Awaited[T]:
        """`submit` for an event loop. `is_awaited`: see `Job`."""
        outcome: Awaited[T] = Awaited()
        self._put(task, outcome, timings, session_slot, is_awaited=is_awaited)
        return outcome

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function on the engine's thread, between two forwards."""
        future: Future[T] = Future()
        self._put(_as_task(function), future, needs_forward=False)
        return future

    def _put(
        self,
        task: Task[T],
        outcome: Outcome,
        timings: ServiceTimings | None = None,
        session_slot: Slot | None = None,
        *,
        needs_forward: bool = True,
        is_awaited: bool = True,
    ) -> None:
        job = Job(
            task, outcome, timings or ServiceTimings(), time.perf_counter_ns(), needs_forward,
            session_slot, is_awaited,
        )  # fmt: skip
        with self._lock:
            if self._stopping:
                outcome.set_exception(Unavailable("the engine is stopping"))
            else:
                self._queued += needs_forward
                self._inbox.put(job)

    @property
    def is_alone(self) -> bool:
        """Whether no task but the calling one waits, and no absent session is worth waiting for.

        On the engine's thread only.
        """
        asking = self._current_job
        others = (job for job in self._active if job is not asking)
        waits = not self._inbox.empty() or any(job.wish is not None for job in others)
        return not waits and not self._wait_ns(
            1, 1, excluding=asking.session_slot if asking else None
        )

    def session_ended(self, slot: Slot) -> None:
        """Records that a slot's session has ended; on the engine's thread only."""
        self._gathering.remove(slot)

    def _wait_ns(self, waiting: int, rows: int, excluding: Slot | None = None) -> float:
        return self._gathering.wait_ns(waiting, rows, time.perf_counter_ns(), excluding)

    def stop(self, *, waits: bool = True) -> None:
        """Ends the thread; running tasks fail with Unavailable.

        The thread ends only after the current forward or function has returned. A caller that does
        not wait, or has waited MAX_STOP_S in vain, must end the process (`draftloop.rpc.role`).
        """
        with self._lock:
            self._stopping = True
            self._inbox.put(None)
        if waits:
            self._thread.join(MAX_STOP_S)
            if self._thread.is_alive():
                log.error("the engine's thread does not end", waited_s=MAX_STOP_S)

    def _run(self) -> None:
        try:
            while self._admit():
                wishes = self._next_batch()
                if wishes:
                    self._step(wishes)
        except BaseException as error:  # else callers would wait for this thread forever
            log.exception("the engine's thread ends")
            with self._lock:
                self._stopping = True
            self._ruin.record_engine_failure(error)
            self._abandon(Unavailable("the engine has failed"))
        else:
            self._abandon(Unavailable("the engine is stopping"))

    def _admit(self) -> bool:
        """Starts the queued jobs, and waits for more if there is nothing else to do or it pays.

        Returns False if the engine is to stop.
        """
        while True:
            try:
                job = self._take()
            except queue.Empty:
                return True
            if job is None:
                return False
            with self._lock:
                self._queued -= job.needs_forward
            queued = time.perf_counter_ns() - job.submitted_ns
            job.timings.queue_ns += queued
            job.timings.prompts_ns += self._last_forward.prompts_share(queued)
            if not job.outcome.cancelled():
                self._active.append(job)
                self._advance(job, None)
                if job.wish is not None:
                    self._defer_update(
                        functools.partial(metrics.ENGINE_QUEUE_TIME.observe, queued / 1e9)
                    )

    def _take(self) -> Job | None:
        """The next job in the inbox. Raises queue.Empty if there is something else to do."""
        if self._active:
            return self._take_or_wait()
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(timeout=QUIET_S if self._pending_updates else None)
        self._run_updates()
        return self._inbox.get()

    def _take_or_wait(self) -> Job | None:
        """The next job in the inbox; waits for a session that is worth waiting for.

        Raises queue.Empty if none came.
        """
        if not self._inbox.empty() or not self._gathering.has_absent:
            return self._inbox.get_nowait()
        waiting = [job for job in self._active if job.wish is not None]
        wait = self._wait_ns(len(waiting), sum(_rows(job.wish) for job in waiting))
        if not wait:
            raise queue.Empty
        began = time.perf_counter_ns()
        try:
            return self._inbox.get(timeout=wait / 1e9)
        finally:
            waited = time.perf_counter_ns() - began
            for job in waiting:
                job.timings.queue_ns += waited

    def _defer_update(self, count: Callable[[], None]) -> None:
        """Defers a metrics update until no answer is being waited for."""
        self._pending_updates.append(count)
        if len(self._pending_updates) >= MAX_PENDING_UPDATES:
            self._run_updates()

    def _run_updates(self) -> None:
        for count in self._pending_updates:
            count()
        self._pending_updates.clear()

    def _next_batch(self) -> list[Job]:
        """The jobs of the next forward; jobs that are finished or cancelled leave."""
        self._active = [job for job in self._active if not _has_ended(job)]
        batch: list[Job] = []
        step: Step | None = None
        for job in by_response_ratio(self._active):
            if isinstance(job.wish, Passes):  # runs alone: now if it is first, or in a later step
                if not batch:
                    return [job]
                continue
            assert job.wish is not None
            if step is not None and not step.try_add(job.wish):
                continue
            if job.wish.renewed is not None:
                try:
                    job.wish = job.wish.renewed()
                except Exception as error:  # the device failed to copy rows of other sessions
                    self._fail_all([job], error)
                    continue
            step = step or Step(job.wish)
            batch.append(job)
        return batch

    def _step(self, batch: list[Job]) -> None:
        self.forward_began = time.monotonic()
        try:
            done, logits = _run(batch)
        except Exception as error:  # the sessions fail, the engine lives
            self._fail_all(batch, error)
            return
        finally:
            self.forward_began = None
        self._ruin.record_success()
        self.forwards += len(done)
        self._last_forward = done[-1] if done else NO_FORWARD
        # Served jobs go to the back, so that a full step starves none.
        self._active = [job for job in self._active if job not in batch] + batch
        waiting = sum(job.wish is not None for job in self._active) - len(batch) + self._queued
        for job, rows in zip(batch, logits, strict=True):
            _record_timings(job, done, len(batch), waiting)
            self._advance(job, rows)
        self._defer_update(functools.partial(metrics.observe_forwards, done, len(batch)))

    def _advance(self, job: Job, logits: Tensor | None) -> None:
        self._current_job, served = job, job.wish
        try:
            job.wish = next(job.task) if logits is None else job.task.send(logits)
        except StopIteration as finished:
            job.wish = None
            _settle(job.outcome, finished.value)
            if len(self._active) == 1 and self._inbox.empty():  # no other session waits
                time.sleep(0)  # releases the interpreter's lock, so that the answer leaves at once
        except Exception as error:
            self._fail(job, error)
            if is_fatal_to_device(error):  # sampling runs on the device, too
                self._ruin.record_failure(error)
        except BaseException as error:  # a panic in Rust is no Exception; it fails one session
            job.context.run(log.exception, "a task ended with what is no exception")
            self._fail(job, RuntimeError(f"{type(error).__name__}: {error}"))
        self._current_job = None
        self._notify_gathering(job, served)

    def _notify_gathering(self, job: Job, served: Wish | None) -> None:
        """Tells the gathering which sessions have asked and which have been answered."""
        if not job.is_awaited:
            return
        if served is None and job.wish is not None:
            job.session_slot = job.session_slot or job.wish.slot
            self._gathering.record_request(job.session_slot, _rows(job.wish), job.submitted_ns)
        elif served is not None and job.wish is None:
            self._gathering.record_answer(job.session_slot, time.perf_counter_ns())

    def _fail_all(self, batch: Sequence[Job], error: Exception) -> None:
        """Fails the jobs of a batch whose forward, or copying of rows before it, failed."""
        metrics.FORWARD_FAILURES.inc()
        for job in batch:
            self._fail(job, error)
        self._ruin.record_failure(error)

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
    """Number of new tokens of a wish; 1 for `Passes`, whose forwards are not known yet."""
    return wish.rows if isinstance(wish, Forward) else 1


def _has_ended(job: Job) -> bool:
    """Whether a job wishes for no further forward; one that was cancelled is closed."""
    if job.wish is not None and job.outcome.cancelled():
        job.wish = None
        job.context.run(_close, job.task)
    return job.wish is None


def _record_timings(job: Job, done: Sequence[Pass], batch_size: int, waiting: int) -> None:
    """Records the forwards that were just run for a job, before it replaces its wish."""
    timings, last = job.timings, done[-1] if done else NO_FORWARD
    elapsed = sum(forward.nanoseconds for forward in done)
    own = prompt_tokens(job.wish) if isinstance(job.wish, Forward) else 0
    timings.forward_ns += elapsed
    timings.forwards += len(done)
    timings.batch_size, timings.waiting = batch_size, waiting
    timings.batch_rows, timings.prompt_rows = last.rows, last.prompt_rows
    timings.prompts = last.prompts
    timings.prompts_ns += last.prompts_share(elapsed, own_rows=own)


def _run(batch: Sequence[Job]) -> tuple[Sequence[Pass], Sequence[Tensor | None]]:
    """Runs one forward for all jobs, or the `Passes` of the only one; returns passes and logits."""
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
    except BaseException:  # the task's own clean-up failed; the engine and other tasks go on
        log.exception("a task failed while it was being closed")


def _settle(outcome: Outcome, value: Any) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
        outcome.set_result(value)


def _as_task(function: Callable[[], T]) -> Task[T]:
    """A task that needs no forward."""
    yield from ()
    return function()
