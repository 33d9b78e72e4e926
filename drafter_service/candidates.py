"""A draft tree that grows over several forwards of the draft model and tracks which nodes were run.

A node's children are ranked by the draft model's log-probabilities plus the target's own noise, so
the few best contain the target's token far more often than the most probable ones would.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from drafter_service import tree_children, tree_ends, tree_nodes
from drafter_service.economy import Economy
from drafter_service.passes import FORWARDS, LENGTH, Context, grow
from drafter_service.session import NOISE_AT_ONCE, DrafterSession
from drafter_service.tree_nodes import (
    NODE,
    PLAN,
    STATE,
    UNRUN,
    Learned,
    NodeRecords,
    Tree,
)
from draftloop.calibration import Calibration
from draftloop.runtime.forward import Forward
from draftloop.runtime.prepared import Pass, Passes, Prepared
from draftloop.tree import ROOT, SOURCES, DraftBudget, DraftTree
from phrase_store.stops import stops_of

FIRST_ROOM = 512  # nodes at first; doubled when more are needed
NO_DELTA = -1.0


class Candidates:
    """Nodes, parents before children; the same token under the same parent is one node.

    An end is a node whose children are to be added next. `children`: maximum number of children
    that the draft model adds to one node. A draft takes these steps:

        advance             moves the root to the end of the committed text
        plan, offer         sets the limits of growth; adds nodes of other sources
        begin               sets the first ends
        while it `has_ends`    make_room, next_forward (which returns logits), take, next_ends;
                            or passes, which does all of that in one call;
                            or take_known, next_ends, if no forward is needed
        choose, build       selects the nodes that are worth verifying, as a `DraftTree`
        judge               learns from the target's tokens
    """

    def __init__(self, session: DrafterSession, children: int) -> None:
        self.session = session
        self._children = min(children, session.model.vocabulary_size)
        most = session.model.options.max_draft_nodes
        self._tree = Tree(
            nodes=np.zeros(FIRST_ROOM, NODE),
            plan=np.zeros(1, PLAN),
            state=np.zeros(1, STATE),
            rows=session.slot.rows,
            model_tokens=np.zeros((most + 1, self._children), np.int64),
            model_shares=np.zeros((most + 1, self._children)),
            chosen=np.zeros(FIRST_ROOM, np.int64),
            ends=np.zeros(FIRST_ROOM, np.int64),
            stops=stops_of(session.stop_token_ids),
        )
        self.set_calibration(session.experience.calibration)
        self.clear()

    def set_calibration(self, calibration: Calibration) -> None:
        """Sets the calibration that the draft model's own nodes use and update from now on."""
        self._learned = Learned(calibration, self.session.experience.reviews)

    def clear(self) -> None:
        """Removes all nodes and what is known of the root; the slot is unchanged."""
        self._start = len(self.session.committed)
        tree_nodes.clear(self._tree, False)

    def __len__(self) -> int:
        return self._count("nodes")

    @property
    def nodes(self) -> NodeRecords:
        """All nodes as records of `tree_nodes.NODE`, without the root."""
        return self._tree.nodes[: len(self)]

    @property
    def drafted(self) -> int:
        """Number of nodes that the draft model proposed."""
        return self._count("drafted")

    @property
    def root_is_run(self) -> bool:
        """Whether the draft model's output after the last committed token is known."""
        return bool(self._tree.nodes[ROOT]["row"] != UNRUN)

    @property
    def ends(self) -> list[int]:
        """Nodes that grow next."""
        ends: list[int] = self._tree.ends[: self._count("ends")].tolist()
        return ends

    @property
    def has_ends(self) -> bool:
        """Whether there are ends."""
        return self._count("ends") > 0

    @property
    def is_too_expensive(self) -> bool:
        """Whether growth ended because another forward would not pay."""
        return self._count("why") == tree_ends.TOO_EXPENSIVE

    @property
    def newest_depths(self) -> set[int]:
        """Depths of the nodes that the last forward added."""
        first, end = self._count("first_new"), self._count("nodes")
        return set(self._tree.nodes["depth"][first:end].tolist())

    def _count(self, name: str) -> int:
        return int(self._tree.state[name][0])

    @property
    def _max_nodes(self) -> int:
        """Maximum number of nodes, as planned."""
        return int(self._tree.plan["most"][0])

    @property
    def _max_depth(self) -> int:
        return int(self._tree.plan["max_depth"][0])

    def _choose(self, most: int) -> None:
        tree_ends.choose(self._tree, most, float(self._tree.plan["least"][0]))

    def plan(
        self, budget: DraftBudget, *, together: int, most: int, max_depth: int, least: float,
        delta: float = NO_DELTA,
    ) -> None:  # fmt: skip
        """Sets how the tree grows (`tree_nodes.PLAN`); the prices are those of the budget."""
        plan, state = self._tree.plan[0], self._tree.state[0]
        plan["children"], plan["together"] = self._children, together
        plan["most"], plan["max_depth"], plan["least"] = most, max_depth, least
        plan["tokens_per_second"] = budget.tokens_per_second
        plan["node_price"] = budget.least_path_probability
        plan["delta"] = delta
        state["expected"], state["why"] = 0.0, 0

    def offer(self, tree: DraftTree, max_depth: int) -> None:
        """Adds the nodes that another source proposes, down to `max_depth`."""
        if tree:
            self._ensure_capacity(len(tree))
            whole = np.array((tree.token_ids, tree.parents, tree.sources), np.int64)
            tree_nodes.offer(self._tree, whole, np.array(tree.estimates, np.float64), max_depth)

    def begin(self, reviewed: int = 0) -> None:
        """Sets the first ends: the root, and the `reviewed` best offered nodes, run with it."""
        tree = self._tree
        tree.ends[0], tree.state["ends"] = ROOT, 1
        if reviewed and not self.root_is_run:
            self._choose(min(reviewed, self._max_nodes))
            tree_ends.find_ends(tree, 1, self._max_depth)
            tree.ends[: self._count("ends")].sort()

    def begin_after(self, chain: DraftTree) -> None:
        """Sets the first end: the last token of a chain whose other tokens were all run."""
        if not chain:
            self.begin()
            return
        last, state = len(chain) - 1, self._tree.state
        self._tree.nodes[ROOT]["row"], state["rows"] = ROOT, self.session.slot.pending
        self.offer(chain, len(chain))
        self.nodes["grown"][:last] = 1
        self._tree.ends[0], state["ends"] = last, 1

    def chain(self, first: int) -> list[tuple[int, float, float]]:
        """The nodes of a chain from index `first` on, as (token, share of scores, estimate)."""
        known = self.nodes[first:]
        shares = self._tree.model_shares[self._tree.nodes["row"][known["parent"]], 0]
        columns = (known["token"], shares, known["estimate"])
        return list(zip(*(field.tolist() for field in columns), strict=True))

    def next_ends(self, economy: Economy) -> None:
        """Sets the next ends: those that pay, or none."""
        tree_ends.next_ends(self._tree, economy.state)

    def open_all_ends(self, max_ends: int) -> None:
        """Sets the next ends, at any cost: all whose children are known, else up to `max_ends`."""
        tree = self._tree
        self._choose(len(self))
        tree_ends.find_ends(tree, 0, self._max_depth)
        if not tree_ends.keep_known(tree):
            tree.state["ends"] = min(max_ends, self._room, self._count("ends"))
            tree.ends[: self._count("ends")].sort()

    @property
    def all_known(self) -> bool:
        """Whether the children of all ends are known, so that no forward is needed."""
        return tree_ends.all_known(self._tree)

    def take_known(self) -> None:
        """`take` with the draft model's stored outputs after these ends, from earlier forwards."""
        self._ensure_capacity(self._max_nodes)
        tree_children.take_known(self._tree, self._learned)

    def make_room(self) -> None:
        """Ensures that the slot has rows for the ends; if not, only chosen nodes keep theirs."""
        if tree_ends.nodes_to_run(self._tree) > self._room:
            self._retain()

    @property
    def _room(self) -> int:
        """Rows left in the slot for nodes."""
        return self.session.model.options.max_draft_nodes - self.session.slot.pending

    def next_forward(self) -> Forward:
        """Gives the ends rows in the slot; returns the forward over them.

        If the root was not run yet, the forward begins with the committed tokens up to it.
        """
        session, slot, tree = self.session, self.session.slot, self._tree
        nodes = [node for node in self.ends if node != ROOT]
        tail = () if self.root_is_run else session.committed[slot.length :]
        tree.nodes[ROOT]["row"] = ROOT
        parents, token_ids = [], []
        for row, node in enumerate(nodes, slot.pending):
            known = tree.nodes[node]
            known["row"] = row
            token_ids.append(int(known["token"]))
            parents.append(int(tree.nodes[known["parent"]]["row"]))
        tree.state["rows"] = slot.pending + len(nodes)
        logits_from = max(len(tail) - 1, 0)
        return Forward(session.model, slot, tail, token_ids, parents, logits_from=logits_from)

    def take(self, logits: Tensor) -> float:
        """Adds children from the logits after the ends; returns the gain (`tree_children.take`).

        logits: float32 [ends, vocabulary].
        """
        session, ends = self.session, self.ends
        self._ensure_capacity(self._max_nodes)
        start = len(session.committed)
        paths: list[list[int]] = [[]] * len(ends)
        if session.sampler.depends_on_path:
            paths = [self.path_tokens(node) for node in ends]
        depths = self._tree.nodes["depth"]
        positions = [start + int(depths[node]) for node in ends]
        choices = session.sampler.best(logits, positions, paths, self._children)
        tokens, shares = np.array(choices.token_ids), np.array(choices.shares())
        tree_children.store_outputs(self._tree, tokens, shares)
        guesses = tree_children.offered_children(self._tree)
        if places := guesses.places.tolist():
            offered_tokens = self._tree.nodes["token"][guesses.nodes].tolist()
            guesses.shares[:] = choices.shares_of(places, offered_tokens)
        gain = tree_children.take(self._tree, self._learned, tokens, shares, guesses)
        return float(gain)

    def passes(self, economy: Economy) -> Passes | None:
        """All remaining forwards as one call; None if the next must be a forward of its own."""
        session, slot = self.session, self.session.slot
        prepared = session.prepared
        if prepared is None:
            return None
        tail = 0 if self.root_is_run else len(session.committed) - slot.length
        if tail + tree_ends.nodes_to_run(self._tree) > prepared.max_rows:
            return None
        return Passes(session.model, slot, lambda: self._run_passes(prepared, economy))

    def _run_passes(self, prepared: Prepared, economy: Economy) -> list[Pass]:
        self._ensure_capacity(self._max_nodes)
        session, slot, tree = self.session, self.session.slot, self._tree
        tail = [] if self.root_is_run else session.committed[slot.length :]
        depth = tree_ends.deepest(tree)
        noise = session.sampler.noise(len(session.committed), depth + NOISE_AT_ONCE)
        temperature, cuts = session.sampler.temperature, session.sampler.cuts
        records = prepared.records(slot, self._children, temperature, noise, cuts, weighed=True)
        place = np.array((slot.length, 0), np.int64)
        context = Context(np.array(tail, np.int64), place)
        grow(tree, self._learned, economy.state, records, context)
        slot.length, slot.pending = int(place[LENGTH]), self._count("rows")
        return [Pass(*times) for times in records.times[: place[FORWARDS]].tolist()]

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from the root's child down to `node`."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(int(self._tree.nodes[node]["token"]))
            node = int(self._tree.nodes[node]["parent"])
        return tokens[::-1]

    def _ensure_capacity(self, more: int) -> None:
        """Grows the arrays, if needed, to hold `more` further nodes and the root."""
        tree = self._tree
        room = len(tree.nodes)
        while room < len(self) + more + 1:
            room *= 2
        if room > len(tree.nodes):
            nodes = np.zeros(room, NODE)
            nodes[: len(self)], nodes[ROOT] = tree.nodes[: len(self)], tree.nodes[ROOT]
            chosen, ends = np.zeros(room, np.int64), np.zeros(room, np.int64)
            chosen[: len(tree.chosen)], ends[: len(tree.ends)] = tree.chosen, tree.ends
            self._tree = tree._replace(nodes=nodes, chosen=chosen, ends=ends)

    def choose(self) -> int:
        """Chooses the nodes with the greatest reach, as planned; returns their number."""
        self._choose(self._max_nodes)
        return self._count("chosen")

    def _retain(self) -> None:
        """Drops keys and values of all but the chosen nodes, whose parents are also chosen."""
        self.choose()
        nodes: list[int] = self._tree.chosen[: self._count("chosen")].tolist()
        rows = self._tree.nodes["row"]
        kept = sorted((node for node in nodes if rows[node] != UNRUN), key=lambda n: int(rows[n]))
        before = [int(rows[node]) for node in kept]
        self.session.slot.keep(before)
        rows[: len(self)] = UNRUN
        rows[kept] = range(len(kept))
        self._compact_outputs(before)

    def advance(self) -> None:
        """Moves the root to the end of the committed text and removes all nodes.

        If the text leads to a node that was run, the outputs and slot rows of that node and of its
        descendants are kept. Otherwise everything is cleared, and `prefill` updates the slot.
        """
        tokens = np.array(self.session.committed[self._start :], np.int64)
        rows = np.empty_like(tokens)
        if not len(tokens) or not tree_nodes.follow(self._tree, tokens, rows):
            self.clear()
            return
        path = rows.tolist()
        row = path[-1]
        descendants = self._descendant_rows(row)
        self._tree.model_tokens[ROOT] = self._tree.model_tokens[row]
        self._tree.model_shares[ROOT] = self._tree.model_shares[row]
        self.session.slot.reroot(path, descendants)
        self._start = len(self.session.committed)
        self._compact_outputs(descendants)
        tree_nodes.clear(self._tree, True)

    def _descendant_rows(self, row: int) -> list[int]:
        """Pending rows that descend from a pending row."""
        reached, parents = {row}, self.session.slot.pending_parents
        for later in range(row + 1, len(parents)):
            if parents[later] in reached:
                reached.add(later)
        return sorted(reached - {row})

    def _compact_outputs(self, rows: Sequence[int]) -> None:
        """Follows the slot, which has kept only these pending rows, now contiguous."""
        tree, count = self._tree, len(rows)
        tree.state["rows"] = count
        for outputs in (tree.model_tokens, tree.model_shares):
            outputs[:count] = outputs[list(rows)]

    def build(self) -> DraftTree:
        """The chosen nodes as a draft tree, parents before children."""
        count = self._count("chosen")
        whole, estimates = np.empty((3, count), np.int64), np.empty(count)
        tree_nodes.copy_out(self._tree, whole, estimates)
        token_ids, parents, sources = whole.tolist()
        return DraftTree(
            token_ids=tuple(token_ids),
            parents=tuple(parents),
            estimates=tuple(estimates.tolist()),
            sources=tuple(map(SOURCES.__getitem__, sources)),
        )

    def judge(self, emitted: Sequence[int]) -> None:
        """Learns from the target's tokens: for every node on their path, which child was right.

        This judges nodes that were proposed but not verified, too.
        """
        tree_children.judge(self._tree, self._learned, np.array(emitted, np.int64))
