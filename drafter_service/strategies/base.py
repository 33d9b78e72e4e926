"""What a drafting strategy is."""

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

    The calls come in order: `prefill` and, beside it, `reading` once, then rounds of `observe`,
    `offer` and `propose`. `prefill` and `propose` run on the engine's thread and yield the forwards
    they need, so that sessions share them; the others take none.
    """

    name: ClassVar[str]

    def __init__(self, session: DrafterSession) -> None:
        self.session = session
        # Of the last draft: nodes that were looked at before it was cut, and what ended it.
        self.proposed_nodes = 0
        self.end = DraftEnd.NONE

    def offer(self, tree: DraftTree) -> None:  # noqa: B027
        """Hears what cheaper sources propose for the next draft; by default nobody listens."""

    def reading(self) -> Iterator[None]:
        """Takes in the text beside the models, a piece a step; by default there is nothing to do.

        On the event loop while the engine prefills, and to its end before the first `propose`.
        """
        yield from ()

    def prefill(self, *, whole: bool = True) -> Task[None]:
        """Runs the committed tokens that were not run yet, but for the last one.

        All of them, or else as in `runtime.prefill` what a draft's first forward does not take.
        """
        session = self.session
        if whole:  # nobody waits for this
            session.sampler.prepare(len(session.committed), NOISE_AT_ONCE)
        yield from self.prefill_of(session.model, session.slot, whole=whole)

    def prefill_of(self, model: LanguageModel, slot: Slot, *, whole: bool) -> Task[None]:
        """The same for one model of the session."""
        committed, chunk = self.session.committed, self.session.prefill_chunk_tokens
        yield from prefill(model, slot, committed, chunk_tokens=chunk, whole=whole)

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:  # noqa: B027
        """Learns which tokens were committed and what the verifier said of the last draft.

        The session has the tokens already, of rounds that were drafted elsewhere too, which came
        after the draft's; `verdict` is None where there is no draft that was not judged before.
        """

    @abstractmethod
    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """A draft that continues the session's committed tokens, within the budget."""

    def ahead(self, wanted: Callable[[], bool]) -> Task[None]:
        """Goes on with the last draft while it is being verified, as long as that is `wanted`.

        On the engine's thread, before the next `observe`; by default there is nothing to do.
        """
        yield from ()
