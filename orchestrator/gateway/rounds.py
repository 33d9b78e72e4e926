"""The trace of a round: its tokens' sources, its draft, why that ended, what was accepted."""

from __future__ import annotations

from typing import Any

from orchestrator.figures import Piece
from orchestrator.tokenizer import Tokenizer


def trace(piece: Piece, tokenizer: Tokenizer) -> dict[str, Any]:
    """The trace of the round that gave `piece`.

    A token's `text` is the text that it completes: a character of several tokens comes with the
    last one. The draft is a list of nodes, parents before children; parent -1 is the last committed
    token.
    """
    draft = piece.draft
    return {
        "tokens": [
            {"text": text, "token_id": token, "source": source.name.lower()}
            for text, token, source in zip(piece.texts, piece.token_ids, piece.sources, strict=True)
        ],
        "draft": [
            {
                "text": tokenizer.token_bytes(token).decode("utf-8", "replace"),
                "token_id": token,
                "parent": parent,
                "estimate": round(estimate, 4),
                "source": source.name.lower(),
            }
            for token, parent, estimate, source in zip(
                draft.token_ids, draft.parents, draft.estimates, draft.sources, strict=True
            )
        ],
        "accepted_nodes": list(piece.accepted_nodes),
        "draft_end": piece.draft_end.name.lower(),
    }
