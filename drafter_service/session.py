"""One generation on the drafter: its committed tokens, its slot, its sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field

from drafter_service.config import DRAFT_TEMPERATURE
from drafter_service.experience import Experience
from draftloop.errors import InvalidInput, StaleSession
from draftloop.phrase import PhraseAccess
from draftloop.request import check_token_ids
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prepared import Prepared
from draftloop.runtime.sampling import Sampler
from draftloop.runtime.sessions import Opening
from draftloop.speculation import (
    DRAFTER_STRATEGIES,
    MAX_WINDOW_NODES,
    CascadeParameters,
    OptTreeParameters,
    OuroborosParameters,
)
from draftloop.tree import DraftBudget
from phrase_store.session import PhraseSession

# Positions whose noise is computed before a draft begins; deeper drafts need another call.
NOISE_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest(Opening):
    """What opens a session."""

    strategy: str
    access: PhraseAccess = PhraseAccess()
    ouroboros: OuroborosParameters = OuroborosParameters()
    opt_tree: OptTreeParameters = OptTreeParameters()
    cascade: CascadeParameters = CascadeParameters()

    def validate(self, model: LanguageModel) -> None:
        """Also checks the strategy and its parameters."""
        Opening.validate(self, model)
        if self.strategy not in DRAFTER_STRATEGIES:
            rule = f"must be one of {', '.join(DRAFTER_STRATEGIES)}"
            raise InvalidInput("strategy", rule, self.strategy)
        self.ouroboros.validate("ouroboros")
        self.opt_tree.validate("opt_tree", MAX_WINDOW_NODES)
        self.cascade.validate("cascade")


@dataclass(slots=True)
class DrafterSession:
    """What a strategy works with. The slot holds a prefix of `committed`, then its own draft.

    `smaller` is the session of the same generation on the next smaller model, which has the same
    vocabulary. The two share one `committed` list and one sampler, so both see every commit.
    """

    model: LanguageModel
    slot: Slot
    request: SessionRequest
    prefill_chunk_tokens: int
    experience: Experience = field(default_factory=Experience)
    phrases: PhraseSession | None = None
    smaller: DrafterSession | None = None
    # Whether no other session waits for the engine; called on the engine's thread.
    is_alone: Callable[[], bool] = lambda: False
    sampler: Sampler = field(init=False)
    committed: list[int] = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    ready_sampler: InitVar[Sampler | None] = None  # None: one is created here
    draft_temperature: InitVar[float] = DRAFT_TEMPERATURE

    def __post_init__(self, ready_sampler: Sampler | None, draft_temperature: float) -> None:
        self.stop_token_ids = self.request.stop_token_ids
        if self.smaller is None:
            self.committed = list(self.request.token_ids)
            self.sampler = ready_sampler or self.request.sampler(self.model)
            self.sampler.scale_temperature(draft_temperature)
        else:
            self.committed, self.sampler = self.smaller.committed, self.smaller.sampler
        self.slot.follow(self.committed)

    def levels(self) -> Iterator[DrafterSession]:
        """This session and those of the smaller models, the largest model first."""
        yield self
        if self.smaller is not None:
            yield from self.smaller.levels()

    def commit(self, token_ids: Sequence[int], committed_length: int) -> None:
        """Appends tokens that became final.

        Raises StaleSession unless they lead to `committed_length`, and InvalidInput for tokens
        outside the vocabulary or the context.
        """
        expected = committed_length - len(token_ids)
        if expected != len(self.committed):
            raise StaleSession(assumed=expected, actual=len(self.committed))
        if token_ids:
            check_token_ids("new_token_ids", token_ids, self.model.vocabulary_size)
        if committed_length > self.model.context_length:
            rule = f"must be at most the context length, {self.model.context_length}"
            raise InvalidInput("committed_length", rule, committed_length)
        self.committed.extend(token_ids)
        self.sampler.observe_output(token_ids)

    @property
    def prepared(self) -> Prepared | None:
        """Runs several forwards in one call; None if this session needs separate ones now.

        Only on the engine's thread.
        """
        return self.model.prepared if self.sampler.is_plain and self.is_alone() else None

    @property
    def room(self) -> int:
        """Tokens that the context has left after the committed ones."""
        return max(0, self.model.context_length - len(self.committed))

    def within_limits(self, budget: DraftBudget) -> DraftBudget:
        """The budget reduced to what context and cache can hold."""
        nodes = min(budget.max_nodes, self.model.options.max_draft_nodes)
        return dataclasses.replace(
            budget, max_nodes=nodes, max_depth=min(budget.max_depth, self.room)
        )
