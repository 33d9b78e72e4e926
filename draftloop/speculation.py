"""How one request is drafted: strategy, limits, phrases, parameters of the methods."""

from __future__ import annotations

from dataclasses import dataclass

from draftloop.errors import InvalidInput
from draftloop.lookahead import LookaheadParameters
from draftloop.phrase import PhraseScope

MAX_LENGTHENING_PHRASES = 16
MAX_WINDOW_NODES = 1024

AUTOREGRESSIVE = "autoregressive"
SPECULATIVE = "speculative"
PROMPT_LOOKUP = "prompt_lookup"
LOOKAHEAD = "lookahead"
OUROBOROS = "ouroboros"
# Those that ask the drafter service; the others draft beside the loop.
DRAFTER_STRATEGIES = (SPECULATIVE, OUROBOROS)
STRATEGIES = (AUTOREGRESSIVE, SPECULATIVE, PROMPT_LOOKUP, LOOKAHEAD, OUROBOROS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuroborosParameters:
    """The four parts of Ouroboros (2402.13720, sections 3.1 to 3.4), each with a switch.

    W = 3 kept 99 % of what W = 15 gives at 28 % of its draft tokens (ALGORITHMS, section 3).
    """

    draft_by_phrases: bool = True
    lengthen: bool = True
    harvest: bool = True
    history: bool = True
    lengthening_phrases: int = 3
    lookahead: LookaheadParameters = LookaheadParameters(window=3, ngram=5, candidates=3)

    def validate(self, field: str) -> None:
        """Raises InvalidInput for the first field that breaks its rule."""
        if not 1 <= self.lengthening_phrases <= MAX_LENGTHENING_PHRASES:
            rule = f"must be from 1 to {MAX_LENGTHENING_PHRASES}"
            raise InvalidInput(f"{field}.lengthening_phrases", rule, self.lengthening_phrases)
        self.lookahead.validate(f"{field}.lookahead", MAX_WINDOW_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What a client may say about drafting; an empty strategy is the server's default.

    `max_draft_tokens` fixes the size of drafts; measured costs decide where it is None.
    """

    strategy: str = ""
    max_draft_tokens: int | None = None
    phrases: PhraseScope = PhraseScope.SHARED
    lookahead: LookaheadParameters = LookaheadParameters()
    ouroboros: OuroborosParameters = OuroborosParameters()

    def validate(self, max_draft_nodes: int) -> None:
        """Raises InvalidInput for the first field that breaks its rule."""
        limit = self.max_draft_tokens
        if limit is not None and not 1 <= limit <= max_draft_nodes:
            rule = f"must be from 1 to {max_draft_nodes}"
            raise InvalidInput("speculation.max_draft_tokens", rule, limit)
        # Only where the target runs it must a window fit in a draft; a drafter cuts its own.
        most = max_draft_nodes if self.strategy == LOOKAHEAD else MAX_WINDOW_NODES
        self.lookahead.validate("speculation.lookahead", most)
        self.ouroboros.validate("speculation.ouroboros")
