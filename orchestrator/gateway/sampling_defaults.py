"""Default sampling parameters: as the model's `generation_config.json` advises, as in vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftloop.errors import InvalidInput, StartupFailure
from draftloop.request import SamplingParameters
from orchestrator.gateway.json_file import read_json_object

FILE = "generation_config.json"
FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
OPENAI = SamplingParameters(temperature=1.0)


def sampling_defaults(tokenizer_folder: Path) -> SamplingParameters:
    """OpenAI's defaults, except for what the `generation_config.json` beside the tokenizer sets.

    Raises StartupFailure if that file cannot be read or breaks a rule.
    """
    file = tokenizer_folder / FILE
    config = read_json_object(file)
    try:
        given = {
            name: _number(name, config[name]) for name in FIELDS if config.get(name) is not None
        }
        chosen = SamplingParameters(**{"temperature": OPENAI.temperature, **given})
        chosen.validate(vocabulary_size=0)  # there are no token ids to check
    except InvalidInput as error:
        raise StartupFailure(f"generation_config: {file}: {error}") from None
    return chosen


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, "must be a number", value)
    if name != "top_k":
        return float(value)
    if not isinstance(value, int):
        raise InvalidInput(name, "must be a whole number", value)
    return max(0, value)
