"""Settings of the drafter service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from draftloop.config import (
    DEFAULT_PORTS,
    LOOPBACK,
    ModelServiceSettings,
    bundled_model,
    comma_separated,
    settings_config,
)
from phrase_store.config import PhraseSettings


class DrafterSettings(PhraseSettings, ModelServiceSettings):
    """A drafter of the bundled draft model on loopback, unless told otherwise."""

    model_config = settings_config("drafter")

    listen: str = Field(f"{LOOPBACK}:{DEFAULT_PORTS['drafter']}", description="host:port")
    model: Path = Field(bundled_model("drafter"), description="folder of the draft model")
    smaller_models: str = Field(
        "",
        description="folders of further draft models for `cascade`, larger ones first, separated "
        "by commas; all with the vocabulary and the context of the first",
    )

    @property
    def smaller_model_folders(self) -> list[Path]:
        """One entry per further model."""
        return [Path(folder) for folder in comma_separated(self.smaller_models)]
