"""Draft trees and verdicts: the types that drafter, verifier and orchestrator exchange."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from draftloop.errors import InvalidInput
from draftloop.logprobs import PromptLogprobs, TokenLogprobs

ROOT = -1
# Maximum number of successors per node that a verdict may carry (2408.08696 uses 8).
MAX_SUCCESSORS = 8


class TokenSource(IntEnum):
    """Where a token came from; the values are those on the wire."""

    TARGET = 1
    DRAFT_MODEL = 2
    PROMPT_LOOKUP = 3
    PHRASE = 4
    LOOKAHEAD = 5
    RECYCLED = 6


# By number; faster than calling the enumeration.
SOURCES = {int(source): source for source in TokenSource}
# Names for people. On the wire, own text is called prompt_lookup, like the strategy that uses only
# this source.
SOURCE_NAMES = {
    TokenSource.TARGET: "target model",
    TokenSource.DRAFT_MODEL: "draft model",
    TokenSource.PROMPT_LOOKUP: "own text",
    TokenSource.PHRASE: "phrase",
    TokenSource.LOOKAHEAD: "lookahead",
    TokenSource.RECYCLED: "recycled",
}


class DraftEnd(IntEnum):
    """What ended a draft; the values are those on the wire."""

    NONE = 0  # there is no draft
    NODES = 1  # the maximum number of nodes
    DEPTH = 2  # the maximum depth
    DRAFT_COST = 3  # another forward of the draft model would not have paid
    VERIFY_COST = 4  # further nodes would not have been worth their verification
    TEXT = 5  # a token that ends the text, or nothing left to propose


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Candidate tokens as parallel arrays, parents before children.

    `parents[i]` is the index of node i's parent, or ROOT (-1) for the last committed token, which
    is not stored. `estimates[i]` is the estimated probability that node i is accepted given that
    its parent was. Siblings have distinct tokens. The constructor checks nothing; call `validate`
    for trees from the wire.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    estimates: tuple[float, ...] = ()
    sources: tuple[TokenSource, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def chain(
        cls, token_ids: Sequence[int], source: TokenSource, estimates: Sequence[float] | None = None
    ) -> DraftTree:
        """A tree without branches."""
        count = len(token_ids)
        return cls(
            token_ids=tuple(token_ids),
            parents=tuple(range(ROOT, count - 1)),
            estimates=tuple(estimates) if estimates is not None else (0.5,) * count,
            sources=(source,) * count,
        )

    def first(self, count: int) -> DraftTree:
        """The tree of the first `count` nodes."""
        return DraftTree(
            self.token_ids[:count],
            self.parents[:count],
            self.estimates[:count],
            self.sources[:count],
        )

    def depths(self) -> list[int]:
        """Depth of every node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def predicted_positions(self, start: int) -> list[int]:
        """Positions that the rows of a forward predict, if the text before has `start` tokens.

        Row 0 follows that text, row i + 1 node i.
        """
        return [start, *(start + depth for depth in self.depths())]

    def paths_tokens(self) -> list[list[int]]:
        """Draft tokens before each of these predictions: none for row 0, else node i's path."""
        paths = map(self.path, range(ROOT, len(self)))
        return [[self.token_ids[node] for node in path] for path in paths]

    def children(self) -> dict[tuple[int, int], int]:
        """Node index by (parent index, token id)."""
        pairs = zip(self.parents, self.token_ids, strict=True)
        return {pair: index for index, pair in enumerate(pairs)}

    def path(self, node: int) -> list[int]:
        """Node indices from the root's child down to `node`; empty for ROOT."""
        return list(self._ancestors(node))[::-1]

    def _ancestors(self, node: int) -> Iterator[int]:
        while node != ROOT:
            yield node
            node = self.parents[node]

    def path_probabilities(self) -> list[float]:
        """Estimated probability of each node that it is reached and accepted."""
        reached: list[float] = []
        for parent, estimate in zip(self.parents, self.estimates, strict=True):
            reached.append(estimate if parent == ROOT else reached[parent] * estimate)
        return reached

    def validate(self, *, vocabulary_size: int, max_nodes: int) -> None:
        """Raises InvalidInput unless this is a tree over the vocabulary within the limit."""
        self._validate_lengths(max_nodes)
        for index, (token, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            if not 0 <= token < vocabulary_size:
                rule = f"must be from 0 to {vocabulary_size - 1}"
                raise InvalidInput(f"draft.token_ids[{index}]", rule, token)
            if not ROOT <= parent < index:
                rule = f"must be from -1 to {index - 1}: parents come before children"
                raise InvalidInput(f"draft.parents[{index}]", rule, parent)
        if len(self.children()) != len(self):
            raise InvalidInput("draft.token_ids", "siblings must differ", list(self.token_ids))
        for index, estimate in enumerate(self.estimates):
            if not 0.0 <= estimate <= 1.0:  # NaN included
                raise InvalidInput(f"draft.estimates[{index}]", "must be from 0 to 1", estimate)

    def _validate_lengths(self, max_nodes: int) -> None:
        count = len(self)
        if count > max_nodes:
            raise InvalidInput("draft.token_ids", f"must have at most {max_nodes} nodes", count)
        for name in ("parents", "estimates", "sources"):
            length = len(getattr(self, name))
            if length != count:
                rule = f"must have one entry for each of {count} nodes"
                raise InvalidInput(f"draft.{name}", rule, f"{length} entries")


EMPTY_TREE = DraftTree()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's answer to a draft.

    `accepted_nodes` are the indices of the accepted path's nodes, from the root's child down.
    `emitted_token_ids` is the accepted path and, unless a stop token ended it (`stopped`), the
    bonus token. `root_prediction` and `node_predictions` are the target's own tokens after the last
    committed token and after every node; phrases are harvested from them. `successor_ids`: if the
    request asked for n successors, the n likeliest tokens, best first, at each of the 1 + nodes
    positions, concatenated. `logprobs` has an entry for every emitted token if the request asked
    for them.
    """

    accepted_nodes: tuple[int, ...]
    emitted_token_ids: tuple[int, ...]
    root_prediction: int
    node_predictions: tuple[int, ...] = ()
    stopped: bool = False
    successor_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()

    def validate(self, vocabulary_size: int) -> None:
        """Raises InvalidInput for tokens outside the vocabulary, or nodes without a prediction."""
        for name, token_ids in (
            ("emitted_token_ids", self.emitted_token_ids),
            ("root_prediction", (self.root_prediction,)),
            ("node_predictions", self.node_predictions),
            ("successor_ids", self.successor_ids),
        ):
            if (wrong := _outside(token_ids, vocabulary_size)) is not None:
                rule = f"must be from 0 to {vocabulary_size - 1}"
                raise InvalidInput(f"verdict.{name}", rule, wrong)
        nodes = len(self.node_predictions)
        if (wrong := _outside(self.accepted_nodes, nodes)) is not None:
            rule = f"must be nodes of the {nodes} that have predictions"
            raise InvalidInput("verdict.accepted_nodes", rule, wrong)

    def judges(self, draft: DraftTree) -> bool:
        """Whether this can be the verdict on `draft`."""
        return len(self.node_predictions) == len(draft)

    def emitted_rows(self) -> list[int]:
        """The forward's row that predicted each emitted token (`DraftTree.predicted_positions`)."""
        rows = [0, *(node + 1 for node in self.accepted_nodes)]
        return rows[: len(self.emitted_token_ids)]

    def emitted_sources(self, draft: DraftTree) -> list[TokenSource]:
        """Source of every emitted token."""
        sources = [draft.sources[node] for node in self.accepted_nodes]
        bonus = len(self.emitted_token_ids) - len(sources)
        return sources + [TokenSource.TARGET] * bonus


def _outside(values: Sequence[int], stop: int) -> int | None:
    """The first value outside `range(stop)`, or None; fast, as rounds wait."""
    if not values or (min(values) >= 0 and max(values) < stop):
        return None
    return next(one for one in values if not 0 <= one < stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBudget:
    """Maximum nodes and depth of the next draft, and what nodes and time are worth.

    A node whose path probability is below `least_path_probability` costs the verifier more time
    than it is worth. A forward of the draft model must bring in `tokens_per_second` times its
    duration.
    """

    max_nodes: int
    max_depth: int
    least_path_probability: float = 0.0
    tokens_per_second: float = 0.0

    def validate(self) -> None:
        """Raises InvalidInput for prices out of range, including NaN."""
        least, rate = self.least_path_probability, self.tokens_per_second
        if not 0.0 <= least <= 1.0:
            raise InvalidInput("least_path_probability", "must be from 0 to 1", least)
        if not 0.0 <= rate < math.inf:
            raise InvalidInput("tokens_per_second", "must be 0 or more, and finite", rate)


@dataclass(slots=True, kw_only=True)
class ServiceTimings:
    """Where a service spent the time of one message, in nanoseconds, and with whom it shared it.

    About the last forward: it contained `batch_size` sessions with `batch_rows` new tokens in all.
    Of these, `prompts` sessions computed `prompt_rows` tokens of their prompts. `waiting` more
    sessions waited when it ended. `prompts_ns` is roughly the part of `queue_ns` and `forward_ns`
    that other sessions' prompts took. `cached_tokens`: when a session is opened, tokens that did
    not have to be computed.
    """

    service_ns: int = 0
    forward_ns: int = 0
    queue_ns: int = 0
    forwards: int = 0
    batch_size: int = 0
    batch_rows: int = 0
    waiting: int = 0
    prompt_rows: int = 0
    prompts: int = 0
    prompts_ns: int = 0
    cached_tokens: int = 0

    @property
    def round_rows(self) -> int:
        """New tokens in the last forward that did not belong to prompts."""
        return self.batch_rows - self.prompt_rows

    @property
    def is_shared(self) -> bool:
        """Whether other sessions took part, so that it took longer than alone."""
        return self.batch_size > 1 or self.waiting > 0 or self.prompts_ns > 0

    def attributes(self) -> dict[str, int]:
        """Attributes for a tracing span."""
        return {
            "queue_ns": self.queue_ns,
            "forward_ns": self.forward_ns,
            "forwards": self.forwards,
            "batch_size": self.batch_size,
            "batch_rows": self.batch_rows,
            "waiting": self.waiting,
            "prompt_rows": self.prompt_rows,
            "prompts": self.prompts,
            "prompts_ns": self.prompts_ns,
            "cached_tokens": self.cached_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A proposed tree, the committed length it continues, and its cost.

    `proposed`: number of nodes that each source proposed before the draft was cut to size, for
    sources with more than the tree has.
    """

    tree: DraftTree
    committed_length: int
    timings: ServiceTimings = field(default_factory=ServiceTimings)
    proposed: Mapping[TokenSource, int] = field(default_factory=dict)
    end: DraftEnd = DraftEnd.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A verdict, the committed length before it, and its cost."""

    verdict: Verdict
    committed_length: int
    timings: ServiceTimings = field(default_factory=ServiceTimings)
    prompt_logprobs: PromptLogprobs | None = None  # if the opening of the session asked for them
