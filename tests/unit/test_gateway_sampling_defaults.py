"""The model's recommended sampling values apply where a request sets none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftloop.errors import StartupFailure
from draftloop.request import SamplingParameters
from orchestrator.gateway.sampling_defaults import OPENAI, sampling_defaults


def defaults_from(folder: Path, **values: Any) -> SamplingParameters:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return sampling_defaults(folder)


def test_generation_configs_of_model_hubs_are_read(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == OPENAI
    qwen = defaults_from(
        tmp_path, do_sample=True, eos_token_id=[1, 2], temperature=0.6, top_k=20, top_p=0.95,
        repetition_penalty=1.05, transformers_version="5.0",
    )  # fmt: skip
    assert qwen == SamplingParameters(
        temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.05
    )
    assert defaults_from(tmp_path, temperature=None, top_k=-1, min_p=0.1) == SamplingParameters(
        temperature=1.0, min_p=0.1
    )


@pytest.mark.parametrize("values", [
    {"temperature": "hot"}, {"temperature": -1}, {"top_p": 0}, {"min_p": [0.1]}, {"top_k": True},
    {"top_k": 2.5},
])  # fmt: skip
def test_invalid_recommended_value_is_named(tmp_path: Path, values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(
        StartupFailure, match=f"^generation_config: .*generation_config.json: {name}"
    ):
        defaults_from(tmp_path, **values)


def test_invalid_json_is_reported(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(StartupFailure, match="generation_config.json cannot be read"):
        sampling_defaults(tmp_path)
