"""What strategies that grow a tree by forwards of the draft model share."""

from __future__ import annotations

import time
from collections.abc import Sequence

from drafter_service.candidates import Candidates
from drafter_service.economy import Economy
from drafter_service.session import DrafterSession
from drafter_service.strategies.base import Strategy
from draftloop.runtime.forward import Task
from draftloop.tree import Verdict


class TreeStrategy(Strategy):
    """Prefills, grows and learns; subclasses say how far. `children`: most of one node."""

    def __init__(self, session: DrafterSession, children: int) -> None:
        super().__init__(session)
        self.candidates = Candidates(session, children)
        self.economy = Economy(session.model.forward_seconds)

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Calibrates by what the target said, of nodes that were not verified too."""
        if verdict is not None:
            self.candidates.judge(new_token_ids)

    def grow(self) -> Task[None]:
        """Runs ends and adds their best children, as planned, until nothing more pays."""
        known = self.candidates
        while known.grows:
            if passes := known.passes(self.economy):
                yield passes
                if not known.all_known:  # those take no rows
                    known.make_room()
            elif known.all_known:
                known.take_known()
                known.next_ends(self.economy)
            else:
                known.make_room()
                yield from self.expand()
                known.next_ends(self.economy)

    def expand(self) -> Task[None]:
        """Runs the ends and adds their best children."""
        known, began = self.candidates, time.perf_counter()
        first = not known.root_is_run
        logits = yield known.run()
        gain = known.take(logits)
        self.economy.observe(time.perf_counter() - began, gain, first=first)
