"""The bundled models in this process, for benchmarks without services."""

from __future__ import annotations

from draftloop.config import bundled_model
from draftloop.runtime.model import LanguageModel, ModelOptions


def bundled_pair(threads: int | None) -> dict[str, LanguageModel]:
    """The bundled models, loaded in this process, in float32."""
    return {
        role: LanguageModel(ModelOptions(folder=bundled_model(role), threads=threads))
        for role in ("verifier", "drafter")
    }
