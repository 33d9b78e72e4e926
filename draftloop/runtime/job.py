"""What an engine does for somebody, and whose prompt is next."""

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
    """A task under way: its next wish, who waits for it, and where its time went.

    `party` is the session that it is for, by its first slot, or else by that of its first wish.
    """

    task: Task[Any]
    outcome: Outcome
    timings: ServiceTimings
    submitted_ns: int
    asks: bool = True  # for forwards, as sessions do
    party: Slot | None = None
    wish: Wish | None = None
    # of the request that it is for, so that log lines name it
    context: Context = field(default_factory=copy_context)


def in_turn(jobs: Sequence[Job]) -> Iterator[Job]:
    """The jobs as they stand, but prompts among themselves by how long they have waited.

    For each of the tokens that they still need (Hansen, "highest response ratio next"): of equal
    prompts the first is run to its end, or all would have their first tokens when the last has; a
    short one overtakes a long one; and none waits for ever.
    """
    prompts = [job for job in jobs if isinstance(job.wish, Forward) and prompt_tokens(job.wish)]
    if len(prompts) < 2:
        return iter(jobs)
    now = time.perf_counter_ns()
    prompts.sort(key=lambda job: (now - job.submitted_ns) / _left(job), reverse=True)
    turns = iter(prompts)
    waiting = set(map(id, prompts))
    return (next(turns) if id(job) in waiting else job for job in jobs)


def _left(job: Job) -> int:
    """Tokens of its prompt that are still to be run."""
    assert isinstance(job.wish, Forward)
    return max(job.wish.left, len(job.wish.committed_token_ids))
