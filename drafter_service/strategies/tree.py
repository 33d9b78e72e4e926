"""What strategies that grow a tree by forwards of the draft model share."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import numpy as np
from torch import Tensor

from drafter_service.candidates import Candidates
from drafter_service.economy import Economy
from drafter_service.session import DrafterSession
from drafter_service.strategies.base import Strategy
from draftloop.runtime.forward import Forward
from draftloop.tree import ROOT, DraftBudget, Verdict


class TreeStrategy(Strategy):
    """Prefills, forwards and learns; subclasses say which nodes are run and which are kept."""

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self.candidates = Candidates(session)
        self.economy = Economy(session.model.forward_seconds)

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Calibrates by what the target said, of nodes that were not verified too."""
        if verdict is not None:
            self.candidates.judge(new_token_ids)

    def expand(
        self, nodes: Sequence[int], *, children: int, most: int, least: float
    ) -> Generator[Forward, Tensor, list[int]]:
        """Runs nodes (ROOT for the first forward) and adds their best children; the new nodes.

        `children` bounds those of each node, `most` all of them, `least` their reach.
        """
        began = time.perf_counter()
        known = self.candidates
        logits = yield known.run([node for node in nodes if node != ROOT])
        choices = known.choices(nodes, logits, children)
        if known.has_offer:
            known.review(nodes, choices)
        new = known.widen(
            nodes, choices.token_ids, np.array(choices.shares()), most=most, least=least
        )
        if known.has_offer:
            known.settle()
        reached = sum(known.reach(node) for node in nodes)
        gain = sum(known.reach(node) for node in new) / reached if reached else 0.0
        self.economy.observe(time.perf_counter() - began, gain, first=ROOT in nodes)
        return new

    def open_ends(self, nodes: Sequence[int], budget: DraftBudget) -> list[int]:
        """Those of `nodes` that something may follow."""
        known, stops = self.candidates, self.session.model.stop_token_ids
        return [
            node for node in nodes
            if known.nodes[node].depth < budget.max_depth and known.nodes[node].token not in stops
        ]  # fmt: skip
