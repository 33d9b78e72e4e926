"""The bundled models loaded in this process, for benchmarks without services."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftloop.config import bundled_model
from draftloop.model_info import model_fingerprint
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel


def bundled_pair(
    threads: int | None, draft: str = "drafter", smaller: Sequence[str] = ()
) -> dict[str, LanguageModel]:
    """The bundled verifier and bundled draft models, loaded in this process, in float32.

    The keys are "verifier", "drafter" and, for the `smaller` draft models, `smaller_role(place)`.
    """
    roles = {"verifier": "verifier", "drafter": draft}
    roles |= {smaller_role(place): name for place, name in enumerate(smaller)}
    return {
        role: LanguageModel(ModelOptions(folder=bundled_model(name), threads=threads))
        for role, name in roles.items()
    }


def fingerprints(drafts: Iterable[str]) -> dict[str, str]:
    """Fingerprints of the bundled verifier and of these draft models, for results without services.

    The profiles in the same results are those of the costs, which may belong to other models.
    """
    return {name: model_fingerprint(bundled_model(name)) for name in ("verifier", *drafts)}


def smaller_role(place: int) -> str:
    """Key of a drafter's smaller model."""
    return f"smaller {place}"
