"""OPT-Tree: the draft tree with the greatest expected accepted length (2406.17276)."""

from __future__ import annotations

from drafter_service.candidates import NO_DELTA
from drafter_service.session import DrafterSession
from drafter_service.strategies.tree import TreeStrategy
from draftloop.runtime.forward import Task
from draftloop.speculation import OPT_TREE
from draftloop.tree import DraftBudget, DraftEnd, DraftTree


class OptTree(TreeStrategy):
    """`opt_tree`: grown layer by layer, the n best nodes of all layers verified (section 3.2).

    Expected accepted length is the sum of the nodes' path probabilities; the n greatest of them
    form a tree, as no child is likelier than its parent. A layer is drafted only where it may
    still change those n: what lies outside them has no descendant inside.
    """

    name = OPT_TREE

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session, children=session.model.options.max_draft_nodes)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """The tree; keys and values of accepted nodes stay in the slot."""
        budget = self.session.within_limits(budget)
        parameters = self.session.request.opt_tree
        most = min(budget.max_nodes, parameters.nodes or budget.max_nodes)
        # A tree of so many nodes was asked for: it is not cut to what pays.
        least = 0.0 if parameters.nodes else budget.least_path_probability
        depth = min(budget.max_depth, parameters.depth)
        # The stop rule (section 3.3): the last layer brought in more than delta. Without a delta
        # the layer is priced before it is paid for.
        delta = NO_DELTA if parameters.delta is None else parameters.delta
        self.candidates.clear()
        return (
            yield from self.grown(
                budget, together=most, most=most, max_depth=depth, least=least, delta=delta
            )
        )

    def ended(self, full: bool, max_depth: int) -> DraftEnd:
        """The last layer tells: it was the deepest, or nothing of it was worth a place."""
        newest = self.candidates.newest_depths
        if not newest:
            return DraftEnd.VERIFY_COST
        return DraftEnd.DEPTH if newest == {max_depth} else DraftEnd.NODES
