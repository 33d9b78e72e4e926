"""Loading a model: limits, end tokens, and errors if it cannot be loaded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from draftloop.errors import InvalidInput, StartupFailure
from draftloop.grammar import Grammar
from draftloop.processor import processor_id
from draftloop.runtime.model import LanguageModel
from tests.support.toy_model import VOCABULARY_SIZE, llama_config, load_model, save_model


class TouchOnUnpickle:
    """Creates a file when it is unpickled."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self._file, "w")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load_model(folder, context_length=100)


def test_model_info_describes_the_service(model: LanguageModel, folder: Path) -> None:
    info = model.info(strategies=["speculative"])
    assert info.model_name == folder.name
    assert info.vocabulary_size == VOCABULARY_SIZE
    assert (info.context_length, info.max_draft_nodes) == (100, 24)
    assert info.stop_token_ids == (0,)
    assert (info.dtype, info.device) == ("float32", "cpu")
    assert info.strategies == ("speculative",)
    assert info.processor == processor_id("cpu")
    assert info.instance_id != model.info().instance_id


def with_config_changes(folder: Path, **changes: Any) -> Path:
    """The model with changes to its configuration."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


def test_context_is_limited_to_the_trained_length(folder: Path) -> None:
    assert load_model(folder).context_length == 128
    with pytest.raises(InvalidInput) as caught:
        load_model(folder, context_length=129)
    assert str(caught.value) == (
        "context_length: must be at most 128, what the model was trained for; got 129"
    )


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 128),
        ({"rope_type": "linear", "factor": 4.0}, 128),
    ],
)
def test_context_is_as_long_as_yarn_makes_it(
    tmp_path: Path, scaling: dict[str, Any], length: int
) -> None:
    """As model cards advise it; the length used to be that without YaRN, with YaRN's quality."""
    folder = save_model(tmp_path, llama_config(rope_scaling=scaling))
    assert load_model(folder).context_length == length
    with pytest.raises(InvalidInput, match=f"must be at most {length}"):
        load_model(folder, context_length=length + 1)


def test_several_stop_tokens_are_read(tmp_path: Path) -> None:
    saved = save_model(tmp_path, llama_config(eos_token_id=[3, 5]))
    assert load_model(saved).stop_token_ids == (3, 5)


def write_json(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(("generation", "eos", "tokens"), [
    ({"eos_token_id": [9, 7]}, None, (9, 7)),
    ({"temperature": 0.6, "do_sample": True}, None, (5,)),  # config.json decides
    ({"eos_token_id": []}, None, (5,)),
    ({"eos_token_id": None}, None, (5,)),
    ({"eos_token_id": 9}, "<end>", (9, 0)),
    ({"eos_token_id": [0, 9]}, "<end>", (0, 9)),
    (None, "<end>", (5, 0)),
    ({"eos_token_id": [9, 500, -1]}, None, (9,)),  # the vocabulary has 96 tokens
], ids=str)  # fmt: skip
def test_stop_tokens_combine_generation_config_and_tokenizer(
    tmp_path: Path,
    generation: dict[str, Any] | None,
    eos: str | None,
    tokens: tuple[int, ...],
) -> None:
    # generation_config.json decides, or else config.json; the tokenizer's own end is added.
    saved = save_model(tmp_path, llama_config(eos_token_id=5))
    (saved / "generation_config.json").unlink()
    if generation is not None:
        write_json(saved, "generation_config.json", generation)
    if eos is not None:
        write_json(saved, "tokenizer_config.json", {"eos_token": eos})
    assert load_model(saved).stop_token_ids == tokens


def test_stop_token_outside_the_vocabulary_keeps_grammars_usable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # An end token that the vocabulary lacks is dropped with a warning; grammars still work.
    saved = save_model(tmp_path, llama_config(eos_token_id=[500, 3]))
    model = load_model(saved)
    assert model.grammars.follow(Grammar("regex", "[0-9]+")).allows(16)
    assert "end tokens that the vocabulary does not have" in capsys.readouterr().out


def test_model_without_stop_tokens_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_model(save_model(tmp_path, llama_config(eos_token_id=None)))
    assert model.stop_token_ids == ()
    assert "the model names no end token" in capsys.readouterr().out


def test_unused_gpu_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    load_model(folder)
    assert "a GPU is not used" in capsys.readouterr().out


def test_unloadable_models_are_reported(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StartupFailure, match="holds no config.json"):
        load_model(tmp_path / "nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(StartupFailure, match="device: cuda is not available"):
            load_model(folder, device="cuda")
    save_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(StartupFailure, match="cannot be loaded"):
        load_model(tmp_path)


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    """Unpickling executes whatever the file contains."""
    marker = tmp_path / "ran"
    save_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(TouchOnUnpickle(str(marker))))
    with pytest.raises(StartupFailure, match="holds no .safetensors file; pickled weights"):
        load_model(tmp_path)
    assert not marker.exists()


def test_custom_model_code_is_never_run(tmp_path: Path) -> None:
    code = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    saved = with_config_changes(save_model(tmp_path), model_type="somebodys", auto_map=code)
    (saved / "own.py").write_text(f"open({str(saved / 'ran')!r}, 'w')\n")
    with pytest.raises(StartupFailure, match=r"needs code of its own .* never run here; serve"):
        load_model(saved)
    assert not (saved / "ran").exists()


def test_missing_weights_fail_startup(tmp_path: Path) -> None:
    saved = save_model(tmp_path)
    config = llama_config(num_hidden_layers=3)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(saved)
    with pytest.raises(StartupFailure, match=r"lacks weights: model\.layers\.2"):
        load_model(saved)


@pytest.mark.parametrize(("changes", "error"), [
    ({"hidden_size": 64}, r": [a-z_.]+weight is \[96, 32\], which does not fit .* \[96, 64\]"),
    ({"num_attention_heads": 5}, r"cannot be loaded: .*not a multiple of the number of attention"),
    ({"num_hidden_layers": "two"}, r"cannot be loaded: .*expected int, got str"),
    ({"quantization_config": {"quant_method": "hqq"}}, r": its weights .* by hqq, which is not"),
    ({"model_type": "t5"}, r"is of the kind t5, which is no causal language model .* serve one"),
    ({"model_type": "brandnew"}, r"cannot be loaded: .*`brandnew` but Transformers does not"),
], ids=str)  # fmt: skip
def test_configuration_errors_are_reported_in_one_line(
    tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    """Whatever exception a library under transformers raises."""
    with pytest.raises(StartupFailure, match=rf"^model: .*{error}"):
        load_model(with_config_changes(save_model(tmp_path), **changes))


def test_stop_token_must_be_a_number(tmp_path: Path) -> None:
    saved = save_model(tmp_path)
    (saved / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(StartupFailure, match="eos_token_id must be a number or a list; got '</s>'"):
        load_model(saved)


def test_unused_weights_are_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved = save_model(tmp_path)
    assert load_model(with_config_changes(saved, num_hidden_layers=1)).parameters > 0
    captured = capfd.readouterr()
    assert "config.json has no place for" in captured.out + captured.err
    assert "model.layers.1" in captured.out + captured.err
