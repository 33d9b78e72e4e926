"""The outcome of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftloop.phrase import MAX_CONTEXT
from draftloop.tree import DraftTree, Verdict


class RoundOutcome(NamedTuple):
    """A finished round, whose tokens are committed.

    `committed`: prompt and output; its last `new_tokens` tokens were committed in this round.
    `draft`: the tree that was verified; `verdict`: the verifier's answer to it.
    `draft_is_lost`: a draft was proposed, but the verifier session was lost before it was judged;
    `draft` is empty then.
    `is_shared`: other sessions influenced how long the verification took.
    """

    committed: Sequence[int]
    new_tokens: int
    draft: DraftTree
    verdict: Verdict
    draft_is_lost: bool = False
    is_shared: bool = False

    @property
    def new_token_ids(self) -> Sequence[int]:
        """The tokens committed in this round."""
        return self.committed[len(self.committed) - self.new_tokens :]

    @property
    def context(self) -> Sequence[int]:
        """The last tokens committed before this round, as many as phrases depend on."""
        start = len(self.committed) - self.new_tokens
        return self.committed[max(0, start - MAX_CONTEXT) : start]
