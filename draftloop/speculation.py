"""How one request is drafted: strategy, limits, phrase scope, parameters of the strategies."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from draftloop.errors import InvalidInput
from draftloop.lookahead import LookaheadParameters
from draftloop.phrase import PhraseScope

MAX_LENGTHENING_PHRASES = 16
MAX_WINDOW_NODES = 1024
MAX_TREE_DEPTH = 64
MAX_CASCADE_TOKENS = 64

AUTOREGRESSIVE = "autoregressive"
SPECULATIVE = "speculative"
PROMPT_LOOKUP = "prompt_lookup"
LOOKAHEAD = "lookahead"
OUROBOROS = "ouroboros"
OPT_TREE = "opt_tree"
CASCADE = "cascade"
TOKEN_RECYCLING = "token_recycling"
FUSED = "fused"
# Strategies that draft in the orchestrator, and strategies that ask the drafter service.
LOOP_STRATEGIES = (AUTOREGRESSIVE, PROMPT_LOOKUP, LOOKAHEAD, TOKEN_RECYCLING)
DRAFTER_STRATEGIES = (SPECULATIVE, OUROBOROS, OPT_TREE, CASCADE, FUSED)
# Strategies that use all draft models of a drafter.
WITH_SMALLER_MODELS = (CASCADE, FUSED)
STRATEGIES = (*LOOP_STRATEGIES, *DRAFTER_STRATEGIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuroborosParameters:
    """The four parts of Ouroboros (2402.13720, sections 3.1 to 3.4), each with a switch.

    `phrases_alone` is not in the paper: rounds are drafted without the draft model if phrases alone
    promise more. W = 3 keeps 99 % of what W = 15 gives, with 28 % of its draft tokens.
    """

    draft_by_phrases: bool = True
    lengthen: bool = True
    harvest: bool = True
    history: bool = True
    phrases_alone: bool = True
    lengthening_phrases: int = 3
    lookahead: LookaheadParameters = LookaheadParameters(window=3, ngram=5, candidates=3)

    def validate(self, field: str) -> None:
        """Raises InvalidInput for the first field that breaks its rule."""
        if not 1 <= self.lengthening_phrases <= MAX_LENGTHENING_PHRASES:
            rule = f"must be from 1 to {MAX_LENGTHENING_PHRASES}"
            raise InvalidInput(f"{field}.lengthening_phrases", rule, self.lengthening_phrases)
        self.lookahead.validate(f"{field}.lookahead", MAX_WINDOW_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptTreeParameters:
    """OPT-Tree (2406.17276, sections 3.2 and 3.3): maximum nodes n, threshold delta, maximum depth.

    `nodes` None means as many as a draft may have; `delta` None means the price of a draft forward.
    """

    nodes: int | None = None
    delta: float | None = None
    depth: int = 10

    def validate(self, field: str, max_nodes: int) -> None:
        """Raises InvalidInput for the first field that breaks its rule."""
        if self.nodes is not None and not 1 <= self.nodes <= max_nodes:
            raise InvalidInput(f"{field}.nodes", f"must be from 1 to {max_nodes}", self.nodes)
        if self.delta is not None and not 0 <= self.delta <= 1:
            raise InvalidInput(f"{field}.delta", "must be from 0 to 1", self.delta)
        if not 1 <= self.depth <= MAX_TREE_DEPTH:
            raise InvalidInput(f"{field}.depth", f"must be from 1 to {MAX_TREE_DEPTH}", self.depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeParameters:
    """Cascade Speculative Drafting (2312.11462, section 3): matrix K and leniency.

    Row 0 of the matrix says how many tokens of the draft each drafter contributes. Row i says how
    many each contributes to what drafter i reviews. The last column is the statistical drafter. An
    empty matrix means the default for the number of drafters.
    """

    matrix: tuple[tuple[int, ...], ...] = ()
    leniency: float = 1.0

    def validate(self, field: str) -> None:
        """Raises InvalidInput for the first field that breaks its rule."""
        for index, row in enumerate(self.matrix):
            name = f"{field}.matrix[{index}]"
            if len(row) != len(self.matrix):
                rule = f"must have {len(self.matrix)} entries: the matrix is square"
                raise InvalidInput(name, rule, list(row))
            if any(row[:index]):
                rule = f"must begin with {index} zeros: nobody reviews a larger drafter"
                raise InvalidInput(name, rule, list(row))
            if not 1 <= sum(row) <= MAX_CASCADE_TOKENS:
                rule = f"must have a sum from 1 to {MAX_CASCADE_TOKENS}"
                raise InvalidInput(name, rule, list(row))
        if not 1 <= self.leniency <= MAX_CASCADE_TOKENS:
            rule = f"must be from 1 to {MAX_CASCADE_TOKENS}"
            raise InvalidInput(f"{field}.leniency", rule, self.leniency)

    def matrix_for(self, draft_models: int) -> tuple[tuple[int, ...], ...]:
        """The matrix for this number of draft models, followed by the statistical drafter.

        Raises InvalidInput if the given matrix is for another number of drafters.
        """
        if not self.matrix:
            return default_cascade(draft_models)
        size = draft_models + 1
        if len(self.matrix) != size:
            rule = (
                f"must have {size} rows of {size} entries: the drafter serves {draft_models} "
                f"draft model{'s' * (draft_models > 1)}, and the statistical drafter comes last"
            )
            raise InvalidInput("cascade.matrix", rule, [list(row) for row in self.matrix])
        return self.matrix


def default_cascade(draft_models: int) -> tuple[tuple[int, ...], ...]:
    """The default matrix K for this number of draft models; ((3, 4), (0, 6)) for one.

    The largest model writes the early tokens. Each model reviews one review of the next one, and
    copied text.
    """
    rows = [(3, *(2,) * (draft_models - 1), 4)]
    for reviewer in range(1, draft_models + 1):
        contributes = [0] * draft_models + [6]
        if reviewer < draft_models:
            contributes[reviewer] = 1
        rows.append(tuple(contributes))
    return tuple(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedParameters:
    """Sources of `fused`, each with a switch; with all of them off, decoding is plain."""

    draft_model: bool = True
    phrases: bool = True
    own_text: bool = True
    recycling: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How to draft for one request; an empty strategy means the server's default.

    `max_draft_tokens` fixes the size of drafts; if it is None, measured costs decide.
    """

    strategy: str = ""
    max_draft_tokens: int | None = None
    phrases: PhraseScope = PhraseScope.SHARED
    lookahead: LookaheadParameters = LookaheadParameters()
    ouroboros: OuroborosParameters = OuroborosParameters()
    opt_tree: OptTreeParameters = OptTreeParameters()
    cascade: CascadeParameters = CascadeParameters()
    fused: FusedParameters = FusedParameters()

    def max_nodes_of(self, strategy: str) -> int | None:
        """Maximum nodes of a draft by the strategy's own parameters; None if they set none."""
        if strategy == LOOKAHEAD:
            return self.lookahead.max_total_nodes
        if strategy == OPT_TREE:
            return self.opt_tree.nodes
        if strategy == CASCADE and self.cascade.matrix:
            return sum(self.cascade.matrix[0])
        return None

    @property
    def method(self) -> Hashable:
        """A key for statistics about drafts: the strategy and the parameters that affect drafting.

        Sources are part of it, because with one switched off, a draft model contributes a different
        amount.
        """
        has_phrases = self.phrases is not PhraseScope.OFF
        parameters = {
            LOOKAHEAD: self.lookahead,
            OUROBOROS: (self.ouroboros, has_phrases),
            OPT_TREE: self.opt_tree,
            CASCADE: self.cascade,
            FUSED: (self.fused, has_phrases),
        }
        return self.strategy, parameters.get(self.strategy)

    def validate(self, max_draft_nodes: int) -> None:
        """Raises InvalidInput for the first field that breaks its rule."""
        limit = self.max_draft_tokens
        if limit is not None and not 1 <= limit <= max_draft_nodes:
            rule = f"must be from 1 to {max_draft_nodes}"
            raise InvalidInput("speculation.max_draft_tokens", rule, limit)
        # Only a window that the client set itself and that the target runs must fit into a draft. A
        # drafter cuts its own window, and of the default one as many columns are used as fit.
        asked = self.strategy == LOOKAHEAD and self.lookahead != LookaheadParameters()
        most = max_draft_nodes if asked else MAX_WINDOW_NODES
        self.lookahead.validate("speculation.lookahead", most)
        self.ouroboros.validate("speculation.ouroboros")
        self.opt_tree.validate("speculation.opt_tree", max_draft_nodes)
        self.cascade.validate("speculation.cascade")
