"""What a drafting strategy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from drafter_service.session import DrafterSession
from draftloop.runtime.forward import Task
from draftloop.runtime.prefill import prefill
from draftloop.tree import DraftBudget, DraftEnd, DraftTree, Verdict


class Strategy(ABC):
    """A way to propose drafts in one session.

    The calls come in order: `prefill` once, then rounds of `observe` and `propose`. `prefill`
    and `propose` run on the engine's thread and yield the forwards they need, so that sessions
    share them; `observe` takes no forward.
    """

    name: ClassVar[str]

    def __init__(self, session: DrafterSession) -> None:
        self.session = session
        # Of the last draft: nodes that were looked at before it was cut, and what ended it.
        self.proposed_nodes = 0
        self.end = DraftEnd.NONE

    def offer(self, tree: DraftTree) -> None:  # noqa: B027
        """Hears what cheaper sources propose for the next draft; by default nobody listens."""

    def prefill(self) -> Task[None]:
        """Runs the committed tokens that were not run yet, but for the last one."""
        session = self.session
        chunk = session.prefill_chunk_tokens
        yield from prefill(session.model, session.slot, session.committed, chunk_tokens=chunk)

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:  # noqa: B027
        """Learns which tokens were committed and what the verifier said of the last draft.

        The session has the tokens already; `verdict` is None when no draft was verified.
        """

    @abstractmethod
    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """A draft that continues the session's committed tokens, within the budget."""
