"""What became of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftloop.tree import DraftTree, Verdict


class RoundOutcome(NamedTuple):
    """A round that has ended: its tokens are committed.

    `committed`: prompt and output, of which the last `new` tokens came in this round. `draft`: what
    was verified, `verdict` what the target said of it. `draft_is_lost`: a draft was proposed, but
    the verifier's session was lost before it was judged; `draft` is empty then. `is_shared`: other
    sessions had a part in how long the verification took.
    """

    committed: Sequence[int]
    new: int
    draft: DraftTree
    verdict: Verdict
    draft_is_lost: bool = False
    is_shared: bool = False
