"""Checked requests for tests that need only a field or two."""

from __future__ import annotations

from typing import Any

from draftloop.request import GenerationRequest, SamplingParameters
from draftloop.speculation import SPECULATIVE, Speculation

VALUES: dict[str, Any] = {
    "request_id": "one",
    "prompt": (5, 6, 7),
    "sampling": SamplingParameters(),
    "max_tokens": 4,
    "speculation": Speculation(strategy=SPECULATIVE),
}


def generation_request(**changes: Any) -> GenerationRequest:
    """The request with some values changed."""
    return GenerationRequest(**{**VALUES, **changes})
