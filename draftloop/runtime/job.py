"""An engine's jobs, and the order in which their prompts are run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from draftloop.runtime.awaited import Outcome
from draftloop.runtime.forward import Forward, Task, Wish
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.step import prompt_tokens
from draftloop.tree import ServiceTimings


@dataclass(slots=True, eq=False)
class Job:
    """A running task: its next wish, the outcome that a caller waits for, and its timings.

    `session_slot` identifies the task's session by its first slot, or else by the slot of its first
    wish. `is_awaited`: a session waits for it; False for work in the background.
    """

    task: Task[Any]
    outcome: Outcome
    timings: ServiceTimings
    submitted_ns: int
    needs_forward: bool = True  # whether it needs forwards, as sessions do
    session_slot: Slot | None = None
    is_awaited: bool = True
    wish: Wish | None = None
    # the request's context, so that log lines name the request
    context: Context = field(default_factory=copy_context)


def by_response_ratio(jobs: Sequence[Job]) -> Iterator[Job]:
    """The jobs in order, with the places of prompts reassigned by waiting time per token left.

    This is Hansen's "highest response ratio next". Of equal prompts the first is run to its end;
    otherwise all would get their first tokens as late as the last one. A short prompt overtakes a
    long one, and none starves.
    """
    prompts = [job for job in jobs if isinstance(job.wish, Forward) and prompt_tokens(job.wish)]
    if len(prompts) < 2:
        return iter(jobs)
    now = time.perf_counter_ns()
    prompts.sort(key=lambda job: (now - job.submitted_ns) / _remaining_tokens(job), reverse=True)
    turns = iter(prompts)
    waiting = set(map(id, prompts))
    return (next(turns) if id(job) in waiting else job for job in jobs)


def _remaining_tokens(job: Job) -> int:
    """Tokens of the job's prompt that are still to be run."""
    assert isinstance(job.wish, Forward)
    return max(job.wish.left, len(job.wish.committed_token_ids))
