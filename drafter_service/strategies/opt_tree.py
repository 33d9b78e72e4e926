"""OPT-Tree: the draft tree with the greatest expected accepted length (2406.17276)."""

from __future__ import annotations

from drafter_service.candidates import Candidates
from drafter_service.strategies.tree import TreeStrategy
from draftloop.runtime.forward import Task
from draftloop.speculation import OPT_TREE
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftEnd, DraftTree


class OptTree(TreeStrategy):
    """`opt_tree`: grown layer by layer, the n best nodes of all layers verified (section 3.2).

    Expected accepted length is the sum of the nodes' path probabilities; the n greatest of them
    form a tree, as no child is likelier than its parent. A layer is drafted only where it may
    still change those n: what lies outside them has no descendant inside.
    """

    name = OPT_TREE

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """The tree; keys and values of accepted nodes stay in the slot."""
        budget = self.session.within_limits(budget)
        parameters = self.session.request.opt_tree
        most = min(budget.max_nodes, parameters.nodes or budget.max_nodes)
        # A tree of so many nodes was asked for: it is not cut to what pays.
        least = 0.0 if parameters.nodes else budget.least_path_probability
        depth = min(budget.max_depth, parameters.depth)
        yield from self.prefill(whole=False)
        known = self.candidates = Candidates(self.session)
        if not min(most, depth):
            return EMPTY_TREE
        layer, expected = [ROOT], 0.0
        self.end = DraftEnd.DEPTH
        for _ in range(depth):
            new = yield from self.expand(layer, children=most, most=most, least=least)
            best = known.best(most)
            before, expected = expected, sum(known.reach(node) for node in best)
            chosen = set(best)
            layer = known.open_ends([node for node in new if node in chosen], budget.max_depth)
            if not layer:
                self.end = self._why_nothing_is_open(new, budget)
                break
            if not self._goes_on(layer, expected - before, budget):
                self.end = DraftEnd.DRAFT_COST
                break
            if len(layer) > self.room:
                known.retain(chosen)
        self.proposed_nodes = known.drafted
        return known.build(known.best(most))

    def _goes_on(self, layer: list[int], grown: float, budget: DraftBudget) -> bool:
        """The stop rule (section 3.3): the last layer brought in more than delta.

        Without a delta the layer is priced before it is paid for.
        """
        delta = self.session.request.opt_tree.delta
        if delta is not None:
            return grown > delta
        reach = sum(self.candidates.reach(node) for node in layer)
        return self.economy.pays(reach, budget)

    def _why_nothing_is_open(self, new: list[int], budget: DraftBudget) -> DraftEnd:
        if not new:
            return DraftEnd.VERIFY_COST
        depths = {self.candidates.nodes[node].depth for node in new}
        return DraftEnd.DEPTH if depths == {budget.max_depth} else DraftEnd.NODES
