"""Descriptions of served models for tests that need only a field or two."""

from __future__ import annotations

from typing import Any

from draftloop.completion import DeploymentInfo
from draftloop.model_info import ModelInfo
from draftloop.speculation import FUSED, STRATEGIES

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
    """The description with some values changed."""
    return ModelInfo(**{**VALUES, **changes})


def deployment_info(drafter: ModelInfo | None = None, strategy: str = FUSED) -> DeploymentInfo:
    """A deployment with this draft model and this default strategy."""
    return DeploymentInfo(
        version="0",
        verifier=model_info(),
        drafter=drafter,
        strategies=STRATEGIES,
        default_strategy=strategy,
        default_max_tokens=16,
    )
