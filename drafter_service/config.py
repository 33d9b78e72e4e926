"""Settings of the drafter service."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from draftloop.config import (
    DEFAULT_PORTS,
    LOOPBACK,
    ModelServiceSettings,
    at_home,
    bundled_model,
    comma_separated,
    settings_config,
)
from phrase_store.config import PhraseSettings

DraftAhead = Literal["auto", "on", "off"]
# Noise too often makes up for a token that the draft model finds unlikely. Sampled at a lower
# temperature than the target, it proposes the target's token more often (decision 36).
DRAFT_TEMPERATURE = 0.8


class DrafterSettings(PhraseSettings, ModelServiceSettings):
    """By default a drafter of the bundled draft model, on loopback."""

    model_config = settings_config("drafter")

    listen: str = Field(f"{LOOPBACK}:{DEFAULT_PORTS['drafter']}", description="host:port")
    model: Path = Field(bundled_model("drafter"), description="folder of the draft model")
    smaller_models: str = Field(
        "",
        description="folders of further draft models for `cascade` and `fused`, larger ones first, "
        "separated by commas; all with the vocabulary and the context of the first",
    )

    prompt_step_s: float = Field(
        0.05,
        gt=0,
        le=60,
        description="longest time, in seconds, that a forward with chunks of prompts should take; "
        "a draft of another session waits for one in each of its own forwards",
    )
    draft_ahead: DraftAhead = Field(
        "auto",
        description="whether `fused` continues to draft while its last draft is verified; auto: "
        "on a GPU that the target does not run on; a CPU is usually shared with the verifier",
    )
    draft_temperature: float = Field(
        DRAFT_TEMPERATURE,
        gt=0,
        le=1,
        description="factor on a request's temperature for draft models: 1 for one that is almost "
        "the target, smaller the less they are alike; changes the speed and no token",
    )

    @property
    def smaller_model_folders(self) -> list[Path]:
        """One entry per further model."""
        return [at_home(folder) for folder in comma_separated(self.smaller_models)]
