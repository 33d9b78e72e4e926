"""One generation on the drafter: its committed tokens, its slot, its sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftloop.errors import InvalidInput, StaleSession
from draftloop.request import SamplingParameters, check_length, check_token_ids
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.sampling import Sampler
from draftloop.tree import DraftBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """What opens a session."""

    session_id: str
    token_ids: tuple[int, ...]
    prompt_length: int
    sampling: SamplingParameters
    strategy: str

    def validate(self, model: LanguageModel, strategies: Sequence[str]) -> None:
        """Raises InvalidInput naming what breaks which rule."""
        check_token_ids("token_ids", self.token_ids, model.vocabulary_size)
        check_length("token_ids", len(self.token_ids), model.context_length)
        if not 1 <= self.prompt_length <= len(self.token_ids):
            rule = f"must be from 1 to the {len(self.token_ids)} token_ids"
            raise InvalidInput("prompt_length", rule, self.prompt_length)
        self.sampling.validate(model.vocabulary_size)
        if self.strategy not in strategies:
            raise InvalidInput("strategy", f"must be one of {', '.join(strategies)}", self.strategy)


@dataclass(slots=True)
class DrafterSession:
    """What a strategy works with. The slot holds a prefix of `committed`, then its own draft."""

    model: LanguageModel
    slot: Slot
    request: SessionRequest
    prefill_chunk_tokens: int
    sampler: Sampler = field(init=False)
    committed: list[int] = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.committed = list(request.token_ids)
        self.sampler = Sampler(request.sampling, self.model.vocabulary_size, self.model.device)
        self.sampler.observe_prompt(request.token_ids[: request.prompt_length])
        self.sampler.observe_output(request.token_ids[request.prompt_length :])

    def commit(self, token_ids: Sequence[int], committed_length: int) -> None:
        """Takes in tokens that became final.

        Raises StaleSession unless they lead to `committed_length`, and InvalidInput for tokens
        outside the vocabulary or the context.
        """
        expected = committed_length - len(token_ids)
        if expected != len(self.committed):
            raise StaleSession(assumed=expected, actual=len(self.committed))
        if token_ids:
            check_token_ids("new_token_ids", token_ids, self.model.vocabulary_size)
        check_length("committed_length", committed_length, self.model.context_length + 1)
        self.committed.extend(token_ids)
        self.sampler.observe_output(token_ids)

    def within_limits(self, budget: DraftBudget) -> DraftBudget:
        """The budget cut to what context and cache hold."""
        room = max(0, self.model.context_length - len(self.committed))
        nodes = min(budget.max_nodes, self.model.options.max_draft_nodes)
        return DraftBudget(max_nodes=nodes, max_depth=min(budget.max_depth, room))
