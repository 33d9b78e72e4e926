"""OPT-Tree: the draft tree with the greatest expected accepted length (2406.17276)."""

from __future__ import annotations

from drafter_service.candidates import NO_DELTA
from drafter_service.session import DrafterSession
from drafter_service.strategies.tree import TreeStrategy
from draftloop.runtime.forward import Task
from draftloop.speculation import OPT_TREE
from draftloop.tree import DraftBudget, DraftEnd, DraftTree


class OptTree(TreeStrategy):
    """`opt_tree`: grows layer by layer and keeps the n best nodes of all layers (section 3.2).

    The expected accepted length is the sum of the nodes' path probabilities. The n nodes with the
    greatest ones form a tree, as no child is likelier than its parent. Only nodes among the best n
    are run, since no other node can have a descendant among them.
    """

    name = OPT_TREE

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session, children=session.model.options.max_draft_nodes)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """Drafts the tree; keys and values of accepted nodes stay in the slot."""
        budget = self.session.within_limits(budget)
        parameters = self.session.request.opt_tree
        most = min(budget.max_nodes, parameters.nodes or budget.max_nodes)
        # If the request gives the number of nodes, the tree is not pruned to what pays.
        least = 0.0 if parameters.nodes else budget.least_path_probability
        depth = min(budget.max_depth, parameters.depth)
        # The stop rule (section 3.3): go on while the last layer added more than delta. Without a
        # delta, each layer's cost is weighed before it is run.
        delta = NO_DELTA if parameters.delta is None else parameters.delta
        self.candidates.clear()
        return (
            yield from self.grow_draft(
                budget, together=most, most=most, max_depth=depth, least=least, delta=delta
            )
        )

    def end_reason(self, full: bool, max_depth: int) -> DraftEnd:
        """The last layer decides: it reached `max_depth`, it was empty, or the nodes ran out."""
        newest = self.candidates.newest_depths
        if not newest:
            return DraftEnd.VERIFY_COST
        return DraftEnd.DEPTH if newest == {max_depth} else DraftEnd.NODES
