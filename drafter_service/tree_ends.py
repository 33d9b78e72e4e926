"""Compiled loops that choose the best nodes of a tree and the ends where it grows next."""

from __future__ import annotations

from drafter_service.economy import pays
from drafter_service.tree_nodes import UNRUN, Tree, top_indices
from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats
from draftloop.tree import ROOT
from phrase_store.stops import is_among

# Values of `why`: the reason that growth ended.
NOTHING_OPEN, TOO_EXPENSIVE = 1, 2


@compiled
def choose(tree: Tree, most: int, least: float) -> None:
    """Chooses the nodes with the greatest reach, parents before children: no child is likelier."""
    state = tree.state[0]
    state.chosen = top_indices(tree.nodes.reach, state.nodes, most, least, tree.chosen)


@compiled
def find_ends(tree: Tree, first: int, max_depth: int) -> None:
    """Writes the chosen nodes that can get children to `ends`, from place `first` on.

    Excluded are nodes that already have them, stop tokens, nodes at `max_depth`, and nodes whose
    parent neither was run nor is an end itself.
    """
    state = tree.state[0]
    count = first
    for place in range(state.chosen):
        known = tree.nodes[tree.chosen[place]]
        reached = known.parent == ROOT or tree.nodes[known.parent].row != UNRUN
        for end in tree.ends[:count]:
            reached |= end == known.parent
        closed = known.grown != 0 or known.depth >= max_depth
        closed |= is_among(known.token, tree.stops)
        if reached and not closed:
            tree.ends[count] = tree.chosen[place]
            count += 1
    state.ends = count


@compiled
def keep_known(tree: Tree) -> bool:
    """Keeps only the ends that were run before, if there are any: they need no forward."""
    state = tree.state[0]
    count = 0
    for end in tree.ends[: state.ends]:
        if tree.nodes[end].row != UNRUN:
            tree.ends[count] = end
            count += 1
    if count:
        state.ends = count
        tree.ends[:count].sort()
    return count > 0


@compiled
def all_known(tree: Tree) -> bool:
    """Whether all ends were run before."""
    known = True
    for end in tree.ends[: tree.state[0].ends]:
        known &= tree.nodes[end].row != UNRUN
    return known


@compiled
def deepest(tree: Tree) -> int:
    """The greatest depth of an end."""
    depth = 0
    for end in tree.ends[: tree.state[0].ends]:
        depth = max(depth, tree.nodes[end].depth)
    return int(depth)


@compiled
def nodes_to_run(tree: Tree) -> int:
    """Number of ends without the root, which takes none of the slot's pending rows."""
    return int(tree.state[0].ends - (tree.ends[0] == ROOT))


@compiled
def next_ends(tree: Tree, economy: Floats) -> None:
    """Sets the ends of the next forward; none if it would gain less than it costs."""
    plan, state = tree.plan[0], tree.state[0]
    choose(tree, plan.most, plan.least)
    before, state.expected = state.expected, 0.0
    for node in tree.chosen[: state.chosen]:
        state.expected += tree.nodes[node].reach
    find_ends(tree, 0, plan.max_depth)
    if keep_known(tree):
        return
    state.ends = min(state.ends, plan.together)
    tree.ends[: state.ends].sort()
    if not state.ends:
        state.why = NOTHING_OPEN
        return
    if plan.delta >= 0:
        is_worthwhile = state.expected - before > plan.delta
    else:
        reach = 0.0
        for end in tree.ends[: state.ends]:
            reach += tree.nodes[end].reach
        is_worthwhile = pays(economy, reach, plan.tokens_per_second, plan.node_price)
    if not is_worthwhile:
        state.why, state.ends = TOO_EXPENSIVE, 0
