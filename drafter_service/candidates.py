"""A draft tree that grows over several forwards of the draft model, and knows what of it was run.

Children of a node are ranked by the draft model's law with the target's own noise on it, so the
few best hold the target's token far more often than the likeliest (ALGORITHMS section 0).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from drafter_service.said import Said, SaidBefore
from drafter_service.session import DrafterSession
from draftloop.calibration import Calibration, cell_of
from draftloop.runtime.choices import Choices
from draftloop.runtime.forward import Forward
from draftloop.tree import ROOT, DraftTree, TokenSource

SOURCE = TokenSource.DRAFT_MODEL
# What the draft model says of an offered node, in five levels. They stand where a calibration has
# depths: both scores together tell more of a reviewed node than its depth does.
LEVEL_EDGES = (0.02, 0.15, 0.5, 0.85)
LEVEL_DEPTHS = (1, 2, 3, 5, 9)
# How likely an offered node is before either is asked, and how sure a draft model may be of it.
USUAL, SUREST = 0.4, 0.9

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Candidate:
    """A node. `reach`: probability that it is accepted, its ancestors included.

    `cell` of the calibration counts whether it was the target's token once its parent was; what
    others offered has none before the draft model saw it. `said` is there once it was run, in this
    tree or in one before; it is `grown` once its children stand in this one.
    """

    token: int
    parent: int
    depth: int
    source: TokenSource
    estimate: float
    reach: float
    calibration: Calibration | None = None
    cell: int = 0
    said: Said | None = None
    grown: bool = False


class Candidates:
    """Nodes, parents before children; the same token under the same parent is one node.

    `said` is what is known of the root, the last committed token, if it was run already.
    """

    def __init__(self, session: DrafterSession, said: Said | None = None) -> None:
        self.session = session
        self.said = said
        self.nodes: list[Candidate] = []
        self.has_offer = False
        self.drafted = 0  # nodes that the draft model proposed
        self._places: dict[tuple[int, int], int] = {}
        self._start = len(session.committed)

    def __len__(self) -> int:
        return len(self.nodes)

    def reach(self, node: int) -> float:
        """Probability that a node is accepted; the root's is 1."""
        return 1.0 if node == ROOT else self.nodes[node].reach

    def depth(self, node: int) -> int:
        """Depth of a node; the root's is 0."""
        return 0 if node == ROOT else self.nodes[node].depth

    def child(self, parent: int, token: int) -> int | None:
        """The node for a token under a parent, if there is one."""
        return self._places.get((parent, token))

    def add(self, candidate: Candidate) -> int:
        """A new node; its parent has no such child yet."""
        self._places[candidate.parent, candidate.token] = len(self.nodes)
        over = self.said_at(candidate.parent)
        candidate.said = None if over is None else over.children.get(candidate.token)
        self.has_offer |= candidate.source is not SOURCE
        self.nodes.append(candidate)
        return len(self.nodes) - 1

    def said_at(self, node: int) -> Said | None:
        """What the draft model said after a node, or after the root."""
        return self.said if node == ROOT else self.nodes[node].said

    def said_before(self, nodes: Sequence[int]) -> SaidBefore | None:
        """The choices of `nodes`, or ROOT, that were all run before; else None."""
        said = [known for known in map(self.said_at, nodes) if known is not None]
        return SaidBefore(said) if len(said) == len(nodes) else None

    def open_ends(self, nodes: Iterable[int], max_depth: int) -> list[int]:
        """Those of `nodes` that something may follow, unless it follows already.

        Their parents were run, or stand among them.
        """
        stops = self.session.model.stop_token_ids
        ends: list[int] = []
        chosen = {ROOT}
        for node in nodes:
            known = self.nodes[node]
            reached = known.parent in chosen or self.nodes[known.parent].said is not None
            if reached and not known.grown and known.depth < max_depth and known.token not in stops:
                ends.append(node)
                chosen.add(node)
        return ends

    def run(self, nodes: Sequence[int]) -> Forward:
        """The forward over nodes that were not run yet, and over the root before all others.

        Their parents were run, or stand among them. The answer's rows: the root's, if it was not
        run before, then those of `nodes` in order.
        """
        session, slot = self.session, self.session.slot
        tail = () if self.said is not None else session.committed[slot.length :]
        self.said = self.said or Said(ROOT)
        for place, node in enumerate(nodes):
            self.nodes[node].said = Said(slot.pending + place)
        parents = [self._row(self.nodes[node].parent) for node in nodes]
        token_ids = [self.nodes[node].token for node in nodes]
        first = max(len(tail) - 1, 0)
        return Forward(session.model, slot, tail, token_ids, parents, logits_from=first)

    def choices(self, nodes: Sequence[int], logits: Tensor, count: int) -> Choices:
        """The best tokens after every one of `nodes`, or ROOT, by the target's own noise."""
        session = self.session
        start = len(session.committed)
        paths: list[list[int]] = [[]] * len(nodes)
        if session.request.sampling.penalized:
            paths = [self.path_tokens(node) for node in nodes]
        positions = [start + self.depth(node) for node in nodes]
        return session.sampler.best(logits, positions, paths, count)

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from the root's child down to `node`."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.nodes[node].token)
            node = self.nodes[node].parent
        return tokens[::-1]

    def remember(
        self, nodes: Sequence[int], token_ids: list[list[int]], shares: list[list[float]]
    ) -> None:
        """Keeps what the draft model said after `nodes`, [nodes, k] of both."""
        for node, tokens, parts in zip(nodes, token_ids, shares, strict=True):
            said = self._known(node)
            said.token_ids, said.shares = tokens, parts

    def review(self, nodes: Sequence[int], choices: Choices | SaidBefore) -> None:
        """Re-weighs what was offered under `nodes` by the draft model's scores there.

        How often an offered node with both scores was right before decides; `both` stands for that
        until it is known.
        """
        rows = {node: row for row, node in enumerate(nodes)}
        offered = [candidate for candidate in self.nodes if candidate.parent in rows]
        if not offered:
            return
        at = [rows[candidate.parent] for candidate in offered]
        shares = choices.shares_of(at, [candidate.token for candidate in offered])
        reviews = self.session.reviews
        for candidate, share in zip(offered, shares, strict=True):
            level = LEVEL_DEPTHS[bisect_right(LEVEL_EDGES, share)]
            candidate.cell = cell_of(candidate.source, candidate.estimate, level)
            candidate.calibration = reviews
            candidate.estimate = reviews.estimate(candidate.cell, both(candidate.estimate, share))
        self.settle()

    def settle(self) -> None:
        """Makes siblings' estimates sum to at most 1, and every reach the product of its path."""
        totals: dict[int, float] = {}
        for candidate in self.nodes:
            total = totals.get(candidate.parent, 0.0) + candidate.estimate
            totals[candidate.parent] = total
        for candidate in self.nodes:
            candidate.estimate /= max(1.0, totals[candidate.parent])
            candidate.reach = self.reach(candidate.parent) * candidate.estimate

    def widen(
        self,
        parents: Sequence[int],
        tokens: Sequence[Sequence[int]],
        scores: Floats,
        *,
        most: int,
        least: float,
    ) -> list[int]:
        """Adds the draft model's children, [parents, k] tokens and scores, as they pay.

        Of all of them the `most` with the greatest reach that is at least `least`, ties by order.
        Returns the new nodes.
        """
        for parent in parents:
            if parent != ROOT:
                self.nodes[parent].grown = True
        depths = [self.depth(parent) + 1 for parent in parents]
        estimates = self._calibrated(scores, depths)
        reaches = np.array([self.reach(parent) for parent in parents])[:, None] * estimates
        flat = reaches.ravel()
        order = np.argsort(-flat, kind="stable")[:most]
        new = []
        calibration, width = self.session.calibration, scores.shape[1]
        for place in order.tolist():
            reach = float(flat[place])
            if reach <= 0 or reach < least:
                break
            row, rank = divmod(place, width)
            if (parents[row], tokens[row][rank]) in self._places:
                continue
            cell = cell_of(SOURCE, float(scores[row, rank]), depths[row])
            candidate = Candidate(
                tokens[row][rank], parents[row], depths[row], SOURCE,
                float(estimates[row, rank]), reach, calibration, cell,
            )  # fmt: skip
            new.append(self.add(candidate))
        self.drafted += len(new)
        return new

    def _calibrated(self, scores: Floats, depths: Sequence[int]) -> Floats:
        """Estimates, of which those of siblings sum to at most 1."""
        calibration = self.session.calibration
        estimates = np.array(
            [
                [calibration.correct(SOURCE, score, depth) if score > 0 else 0.0 for score in row]
                for row, depth in zip(scores.tolist(), depths, strict=True)
            ]
        ).reshape(scores.shape)
        return np.asarray(estimates / np.maximum(1.0, estimates.sum(axis=1, keepdims=True)))

    def best(self, count: int, least: float = 0.0) -> list[int]:
        """The `count` nodes with the greatest reach, at least `least`, parents before children.

        Ties go by depth, then order, so no node stands without its parent.
        """
        fitting = (node for node, known in enumerate(self.nodes) if known.reach >= least)
        order = sorted(fitting, key=lambda n: (-self.nodes[n].reach, self.nodes[n].depth, n))
        return order[:count]

    def retain(self, nodes: Iterable[int]) -> None:
        """Drops keys and values of all but these nodes, which hold their parents too."""
        kept = sorted((n for n in nodes if self.nodes[n].said is not None), key=self._row)
        rows = [self._row(node) for node in kept]
        again = [self._said_again(node, place) for place, node in enumerate(kept)]
        for candidate in self.nodes:
            candidate.said = None
        self.session.slot.keep(rows)
        for node, said in zip(kept, again, strict=True):
            self.nodes[node].said = said
        if self.said is not None:
            self.said.children.clear()

    def advanced(self) -> Candidates:
        """Those behind the text as it is by now.

        Where it has reached a node that was run, what is known of that node and those behind it
        goes along, and the slot holds them; else the slot is left for `prefill` to bring up to it.
        """
        path: list[int] = []
        root: int | None = ROOT
        for token in self.session.committed[self._start :]:
            root = None if root is None else self.child(root, token)
            if root is None or self.nodes[root].said is None:
                return Candidates(self.session)
            path.append(root)
        if root is None or root == ROOT:
            return Candidates(self.session)
        behind = sorted(self._behind(root), key=self._row)
        self.session.slot.reroot([*map(self._row, path)], [*map(self._row, behind)])
        made = {root: self._said_again(root, ROOT)}
        for place, node in enumerate(behind):
            candidate = self.nodes[node]
            made[node] = self._said_again(node, place)
            made[candidate.parent].children[candidate.token] = made[node]
        return Candidates(self.session, made[root])

    def _behind(self, root: int) -> list[int]:
        """Nodes that were run, and so were all between them and `root`."""
        reached = {root}
        for node in range(root + 1, len(self.nodes)):
            candidate = self.nodes[node]
            if candidate.parent in reached and candidate.said is not None:
                reached.add(node)
        return [node for node in reached if node != root]

    def _said_again(self, node: int, row: int) -> Said:
        said = self._known(node)
        return Said(row, said.token_ids, said.shares)

    def _row(self, node: int) -> int:
        """Of a node that was run, its place among the slot's pending rows; the root's is ROOT."""
        return self._known(node).row

    def _known(self, node: int) -> Said:
        said = self.said_at(node)
        assert said is not None, "only what was run is asked for"
        return said

    def build(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of these nodes, in their order: parents come before children."""
        places = {node: place for place, node in enumerate(nodes)} | {ROOT: ROOT}
        chosen = [self.nodes[node] for node in nodes]
        return DraftTree(
            token_ids=tuple(known.token for known in chosen),
            parents=tuple(places[known.parent] for known in chosen),
            estimates=tuple(min(1.0, known.estimate) for known in chosen),
            sources=tuple(known.source for known in chosen),
        )

    def judge(self, emitted: Sequence[int]) -> None:
        """Learns from the target's tokens: each child of a node that was reached was right or not.

        So what was proposed and not verified is judged too.
        """
        children: dict[int, list[Candidate]] = {}
        for candidate in self.nodes:
            children.setdefault(candidate.parent, []).append(candidate)
        node = ROOT
        for token in emitted:
            for candidate in children.get(node, ()):
                if candidate.calibration is not None:
                    candidate.calibration.count(candidate.cell, hit=candidate.token == token)
            found = self.child(node, token)
            if found is None:
                return
            node = found


def both(estimate: float, share: float) -> float:
    """Chance of a node that was offered with `estimate` and has `share` with the draft model.

    As if the two said so independently (naive Bayes); a draft model that has never seen a phrase
    does not outweigh a text that has followed it for long.
    """
    heard = min(max(share, 1 - SUREST), SUREST)
    odds = estimate * heard * (1 - USUAL), (1 - estimate) * (1 - heard) * USUAL
    return odds[0] / sum(odds)
