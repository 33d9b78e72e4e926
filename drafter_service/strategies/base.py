"""The interface of a drafting strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from drafter_service.session import NOISE_AT_ONCE, DrafterSession
from draftloop.runtime.forward import Task
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefill import prefill
from draftloop.tree import DraftBudget, DraftEnd, DraftTree, Verdict


class Strategy(ABC):
    """A way to propose drafts in one session.

    Order of calls: `prefill` and, concurrently, `index_steps` once; then per round `observe`,
    `offer`, `propose`, and `draft_ahead` while the draft is verified. `prefill`, `propose` and
    `draft_ahead` run on the engine's thread and yield the forwards they need, so that sessions
    share them. The other methods need no forward.
    """

    name: ClassVar[str]

    def __init__(self, session: DrafterSession) -> None:
        self.session = session
        # Of the last draft: number of nodes considered before pruning, and why it ended.
        self.proposed_nodes = 0
        self.end = DraftEnd.NONE

    def offer(self, tree: DraftTree) -> None:  # noqa: B027
        """Receives what cheaper sources propose for the next draft; ignored by default."""

    def index_steps(self) -> Iterator[None]:
        """Indexes the text for sources without a model, one piece per step; nothing by default.

        Runs on the event loop while the engine prefills, and completes before the first `propose`.
        """
        yield from ()

    def prefill(self, *, whole: bool = True) -> Task[None]:
        """Runs the committed tokens that are not in the cache yet, except the last one.

        With `whole` false, up to a chunk is left to the draft's first forward (`runtime.prefill`).
        """
        session = self.session
        if whole:  # no draft is being waited for
            session.sampler.prepare(len(session.committed), NOISE_AT_ONCE)
        yield from self.prefill_of(session.model, session.slot, whole=whole)

    def prefill_of(self, model: LanguageModel, slot: Slot, *, whole: bool) -> Task[None]:
        """`prefill` for one model of the session, in its slot."""
        committed, chunk = self.session.committed, self.session.prefill_chunk_tokens
        yield from prefill(model, slot, committed, chunk_tokens=chunk, whole=whole)

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:  # noqa: B027
        """Learns from the newly committed tokens and from the verdict on the last draft.

        The tokens are already in the session. After those of the verdict they may include tokens of
        later rounds that were drafted elsewhere. `verdict` is None if no draft of this strategy
        awaits its verdict.
        """

    @abstractmethod
    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """Returns a draft that continues the session's committed tokens, within the budget."""

    def draft_ahead(self, should_continue: Callable[[], bool]) -> Task[None]:
        """Extends the last draft while it is verified, for as long as `should_continue()` is true.

        Runs on the engine's thread, before the next `observe`; does nothing by default.
        """
        yield from ()
