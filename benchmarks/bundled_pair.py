"""The bundled models in this process, for benchmarks without services."""

from __future__ import annotations

from draftloop.config import bundled_model
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel


def bundled_pair(threads: int | None, draft: str = "drafter") -> dict[str, LanguageModel]:
    """The bundled verifier and a bundled draft model, loaded in this process, in float32."""
    return {
        role: LanguageModel(ModelOptions(folder=bundled_model(name), threads=threads))
        for role, name in (("verifier", "verifier"), ("drafter", draft))
    }
