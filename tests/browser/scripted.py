"""Scripted answers, for what a real server sends too rarely or too slowly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def chunk(text: str, token_id: int) -> dict[str, Any]:
    """A round of one token without a draft."""
    token = {"token_id": token_id, "text": text, "source": "target"}
    trace = {"tokens": [token], "draft": [], "accepted_nodes": [], "draft_end": None}
    return {"choices": [{"text": text, "finish_reason": None, "trace": trace}]}


def stream(texts: Sequence[str], fallback_rounds: int = 0) -> str:
    """The body of a streamed completion that first had to wait, with one round per token."""
    chunks = [chunk(text, at) for at, text in enumerate(texts)]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    metrics = {
        "speculative_decoding": {"fallback_rounds": fallback_rounds},
        "timings": {"tokens_per_second": 1.0 if len(texts) > 1 else 0.0},
    }
    events = [json.dumps(each) for each in (*chunks, {"choices": [], "metrics": metrics})]
    messages = [f"data: {event}\n\n" for event in (*events, "[DONE]")]
    return "".join([": waiting\n\n", *messages])
