"""What `draftloop up` starts."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from draftloop.config import (
    DEFAULT_HTTP_PORT,
    DEFAULT_PORTS,
    LOOPBACK,
    Dtype,
    Quantization,
    at_home,
    bundled_model,
    explain,
)
from draftloop.environment import PHRASES_URL
from draftloop.errors import StartupFailure
from draftloop.speculation import FUSED
from draftloop.suggestion import nearest, unknown_name_message

# The launcher and more than one role need to know these folders.
MODELS = {"target": "DRAFTLOOP_VERIFIER_MODEL", "draft": "DRAFTLOOP_DRAFTER_MODEL"}


class StackConfig(BaseModel):
    """What `draftloop up` starts; a TOML file may set any of these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: Path = Field(bundled_model("verifier"), description="folder of the target model")
    draft: Path | None = Field(
        bundled_model("drafter"), description='folder of the draft model; "none" starts no drafter'
    )
    smaller_models: str = Field(
        "",
        description="folders of further draft models, larger ones first, separated by commas",
    )
    dtype: Dtype = Field("bfloat16", description="element type")
    quantization: Quantization = Field("none", description="of the target model")
    device: str = Field("cpu", description="device of both models")
    draft_device: str | None = Field(
        None, description="device of the draft model, where it is another one"
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="devices among which the target model is split"
    )
    inflate: str = Field("", description="cost inflation of the target model, such as 300M")
    host: str = Field(LOOPBACK, description="address that all roles listen on")
    port: int = Field(DEFAULT_PORTS["orchestrator"], ge=0, le=65535, description="public port")
    http_port: int | None = Field(
        DEFAULT_HTTP_PORT, ge=0, le=65535, description='port of the HTTP API; "none" serves none'
    )
    drafter_port: int = Field(
        DEFAULT_PORTS["drafter"],
        ge=0,
        le=65535,
        description="port of the drafter; if not given and in use, a free one",
    )
    verifier_port: int = Field(
        DEFAULT_PORTS["verifier"],
        ge=0,
        le=65535,
        description="port of the verifier; if not given and in use, a free one",
    )
    default_strategy: str = Field(FUSED, description="strategy of requests that name none")
    phrases_url: str = Field(
        "memory://",
        description="phrase log; memory:// needs no Redis, and each role keeps its own; where not "
        f"given a role's own of the environment, or that of `{PHRASES_URL[0]}`",
    )
    start_timeout_s: float = Field(180.0, gt=0, description="seconds until everything is warm")
    verifier_flags: tuple[str, ...] = Field((), description="further flags of the verifier")
    drafter_flags: tuple[str, ...] = Field((), description="further flags of the drafter")
    orchestrator_flags: tuple[str, ...] = Field((), description="further flags of the orchestrator")

    @field_validator("target", "draft")
    @classmethod
    def _expand_home(cls, folder: Path | None) -> Path | None:
        """Expands `~`, which a shell may have left."""
        return folder and at_home(folder)

    @field_validator("verifier_flags", "drafter_flags", "orchestrator_flags", mode="before")
    @classmethod
    def _split_flags(cls, value: Any) -> Any:
        """Splits a string as a shell does; a sequence is taken as it is."""
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("draft", "http_port", mode="before")
    @classmethod
    def _none_from_text(cls, value: Any) -> Any:
        """Reads "none" as None, because TOML has no null."""
        if value in ("", "none"):
            return None
        if isinstance(value, bool):
            raise ValueError('must be a value, or "none"')
        return value

    @model_validator(mode="after")
    def _check_smaller_models(self) -> Self:
        if self.smaller_models and self.draft is None:
            raise ValueError(
                f'smaller_models: {self.smaller_models} without a draft model (draft is "none"); '
                "name the largest as draft, or leave them out"
            )
        return self

    @classmethod
    def read(cls, file: Path | None, **overrides: Any) -> Self:
        """The file's values, replaced by the overrides that are not None.

        Models that neither names are taken from the roles' environment variables, if set.
        Raises StartupFailure naming the file or the setting that is wrong.
        """
        values: dict[str, Any] = {}
        if file is not None:
            try:
                values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise StartupFailure(f"config: {file} cannot be read: {error}") from None
            _refuse_unknown(values, cls.model_fields)
        for name, variable in MODELS.items():
            if folder := os.environ.get(variable):
                values.setdefault(name, folder)
        values.update({name: value for name, value in overrides.items() if value is not None})
        try:
            return cls(**values)
        except ValidationError as error:
            raise StartupFailure(explain(error)) from None


def _refuse_unknown(keys: Iterable[str], known: Iterable[str]) -> None:
    """Raises StartupFailure naming every unknown key and what may have been meant."""
    known = list(known)
    if mistakes := [
        unknown_name_message(key, "key", nearest(key, known)) for key in keys if key not in known
    ]:
        raise StartupFailure("\n".join(mistakes))
