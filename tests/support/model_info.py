"""A served model's description for tests that look at a field or two of it."""

from __future__ import annotations

from typing import Any

from draftloop.model_info import ModelInfo

VALUES: dict[str, Any] = {
    "model_name": "target",
    "model_fingerprint": "aa",
    "vocabulary_fingerprint": "bb",
    "vocabulary_size": 4096,
    "context_length": 16,
    "parameters": 1,
    "dtype": "float32",
    "device": "cpu",
    "max_sessions": 1,
    "max_draft_nodes": 8,
    "instance_id": "here",
}


def model_info(**changes: Any) -> ModelInfo:
    """The description with some values of the test's own."""
    return ModelInfo(**{**VALUES, **changes})
