"""Drafting strategies without a network: logits by prefix, real slots, real sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from drafter_service.session import DrafterSession, SessionRequest
from draftloop.request import SamplingParameters
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import CacheShape, KVCache, Slot
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.step import StepSize
from draftloop.tree import ROOT

T = TypeVar("T")
Logits = Callable[[Sequence[int]], Tensor]


class ScriptedModel:
    """Answers forwards from a function of the prefix, and records each one's number of rows."""

    forward_seconds = 0.001
    prepared = None
    step_size = StepSize()

    def __init__(
        self, logits: Logits, vocabulary_size: int, *, context_length: int = 256,
        max_draft_nodes: int = 64, stop_token_ids: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.logits = logits
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        self.stop_token_ids = stop_token_ids
        self.device = torch.device("cpu")
        self.options = ModelOptions(folder=None, max_draft_nodes=max_draft_nodes)  # type: ignore[arg-type]
        rows = context_length + max_draft_nodes
        shape = CacheShape(layers=1, slots=1, kv_heads=1, rows=rows, head_dim=1)
        self.cache = KVCache(shape, dtype=torch.float32, device=self.device)
        self.rows_of_forwards: list[int] = []

    def acquire(self) -> Slot:
        """The only slot."""
        return self.cache.acquire(self.options.max_draft_nodes)

    def answer(self, forward: Forward, committed: Sequence[int]) -> Tensor:
        """Logits of the requested rows; the rows are added to the slot."""
        slot = forward.slot
        assert forward.rows <= slot.room()
        self.rows_of_forwards.append(forward.rows)
        if forward.committed_token_ids:
            slot.append(len(forward.committed_token_ids))
        first = slot.pending
        slot.branch(forward.node_token_ids, forward.node_parents)
        tail = range(slot.length - len(forward.committed_token_ids) + 1, slot.length + 1)
        prefixes = [list(committed[:end]) for end in tail]
        prefixes += [[*committed, *self._path(slot, row)] for row in range(first, slot.pending)]
        return torch.stack([self.logits(prefix) for prefix in prefixes[forward.logits_from :]])

    def _path(self, slot: Slot, row: int) -> list[int]:
        tokens: list[int] = []
        while row != ROOT:
            tokens.insert(0, slot.pending_token_ids[row])
            row = slot.pending_parents[row]
        return tokens


def session_of(
    model: ScriptedModel,
    prompt: Sequence[int],
    sampling: SamplingParameters,
    smaller: DrafterSession | None = None,
    **more: Any,
) -> DrafterSession:
    """A session on a scripted model, with a new calibration."""
    request = SessionRequest(
        session_id="test", token_ids=tuple(prompt), prompt_length=len(prompt),
        sampling=sampling, stop_token_ids=frozenset(model.stop_token_ids),
        **{"strategy": "opt_tree", **more},
    )  # fmt: skip
    return DrafterSession(model, model.acquire(), request, 512, smaller=smaller)  # type: ignore[arg-type]


def finish(task: Task[T], session: DrafterSession) -> T:
    """Runs a task to its end."""
    answer: Tensor | None = None
    while True:
        try:
            forward = next(task) if answer is None else task.send(answer)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
        model: Any = forward.model
        answer = model.answer(forward, session.committed)
