"""What strategies that grow a tree by forwards of the draft model share."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import numpy as np
from torch import Tensor

from drafter_service.candidates import Candidates
from drafter_service.economy import Economy
from drafter_service.said import SaidBefore
from drafter_service.session import DrafterSession
from drafter_service.strategies.base import Strategy
from draftloop.runtime.choices import Choices
from draftloop.runtime.forward import Forward
from draftloop.tree import ROOT, Verdict


class TreeStrategy(Strategy):
    """Prefills, forwards and learns; subclasses say which nodes are run and which are kept."""

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self.candidates = Candidates(session)
        self.economy = Economy(session.model.forward_seconds)

    @property
    def room(self) -> int:
        """Rows that the slot has left for nodes."""
        return self.session.model.options.max_draft_nodes - self.session.slot.pending

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Calibrates by what the target said, of nodes that were not verified too."""
        if verdict is not None:
            self.candidates.judge(new_token_ids)

    def expand(
        self, nodes: Sequence[int], *, children: int, most: int, least: float
    ) -> Generator[Forward, Tensor, list[int]]:
        """Runs nodes (ROOT for the first forward) and adds their best children; the new nodes.

        `children` bounds those of each node, `most` all of them, `least` their reach. Of nodes
        that were all run before it takes what was said then, without a forward.
        """
        began = time.perf_counter()
        known = self.candidates
        choices: Choices | SaidBefore | None = known.said_before(nodes)
        runs = choices is None
        if choices is None:
            logits = yield known.run([node for node in nodes if node != ROOT])
            choices = known.choices(nodes, logits, children)
        shares = choices.shares()
        if runs:
            known.remember(nodes, choices.token_ids, shares)
        if known.has_offer:
            known.review(nodes, choices)
        new = known.widen(nodes, choices.token_ids, np.array(shares), most=most, least=least)
        if known.has_offer:
            known.settle()
        if runs:
            reached = sum(known.reach(node) for node in nodes)
            gain = sum(known.reach(node) for node in new) / reached if reached else 0.0
            self.economy.observe(time.perf_counter() - began, gain, first=ROOT in nodes)
        return new
