"""Settings of a service that keeps phrases."""

from __future__ import annotations

import os
from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from draftloop.environment import PHRASES_URL, shared_phrases_url
from draftloop.errors import InvalidInput
from phrase_store.log import check_usable
from phrase_store.redis_url import masked


class PhraseSettings(BaseSettings):
    """Where phrases are shared, and how much of them is kept."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)  # a URL may hold a password

    phrases_url: str = Field(
        "memory://",
        repr=False,
        description="phrase log shared with other processes: memory://, redis://, rediss://, "
        "unix://, redis+cluster:// or redis+sentinel://; where not given that of "
        f"`{PHRASES_URL[0]}`",
    )
    phrases_mib: int = Field(
        64, ge=1, le=65536, description="most MiB for the phrase index of one namespace"
    )
    phrases_namespaces: int = Field(
        8, ge=1, le=1024, description="most namespaces (model and tenant) held at once"
    )
    phrases_records: int = Field(
        50_000, ge=100, le=10_000_000, description="records kept in one namespace's log"
    )
    phrases_timeout_s: float = Field(
        0.05, gt=0, le=60, description="seconds after which the phrase log counts as gone"
    )

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **others: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Adds, with the lowest priority, the phrase log that is set for all roles."""
        url = shared_phrases_url(os.environ)
        shared = {} if url is None else {"phrases_url": url}
        return (*sources, *others.values(), InitSettingsSource(settings_cls, shared))

    @field_validator("phrases_url")
    @classmethod
    def _check_phrases_url(cls, url: str) -> str:
        try:
            check_usable(url)
        except InvalidInput as error:
            raise ValueError(error.description) from None  # the description shows no secret
        return url

    def effective(self) -> dict[str, Any]:
        """All values for the start-up log line; secrets are shown as stars."""
        return {**super().model_dump(mode="json"), "phrases_url": masked(self.phrases_url)}
