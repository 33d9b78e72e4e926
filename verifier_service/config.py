"""Settings of the verifier service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from draftloop.config import (
    DEFAULT_PORTS,
    LOOPBACK,
    ModelServiceSettings,
    bundled_model,
    settings_config,
)


class VerifierSettings(ModelServiceSettings):
    """By default a verifier of the bundled target model, on loopback."""

    model_config = settings_config("verifier")

    listen: str = Field(f"{LOOPBACK}:{DEFAULT_PORTS['verifier']}", description="host:port")
    model: Path = Field(bundled_model("verifier"), description="folder of the target model")
