"""Loading a model: limits, and what is said when it cannot be loaded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from draftloop.errors import InvalidInput, StartupFailure
from draftloop.runtime.model import LanguageModel
from tests.support.toy_model import VOCABULARY_SIZE, llama_config, load_model, save_model


class Touch:
    """Makes a file when it is unpickled."""

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


def test_what_the_service_says_of_itself(model: LanguageModel, folder: Path) -> None:
    info = model.info(strategies=["speculative"])
    assert info.model_name == folder.name
    assert info.vocabulary_size == VOCABULARY_SIZE
    assert (info.context_length, info.max_draft_nodes) == (100, 24)
    assert info.stop_token_ids == (0,)
    assert (info.dtype, info.device) == ("float32", "cpu")
    assert info.strategies == ("speculative",)
    assert info.instance_id != model.info().instance_id


def test_the_trained_context_is_the_limit(folder: Path) -> None:
    assert load_model(folder).context_length == 128
    with pytest.raises(InvalidInput) as caught:
        load_model(folder, context_length=129)
    assert str(caught.value) == (
        "context_length: must be at most 128, what the model was trained for; got 129"
    )


def test_several_stop_tokens(tmp_path: Path) -> None:
    saved = save_model(tmp_path, llama_config(eos_token_id=[3, 5]))
    assert load_model(saved).stop_token_ids == (3, 5)


def test_what_cannot_be_loaded_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StartupFailure, match="holds no config.json"):
        load_model(tmp_path / "nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(StartupFailure, match="device: cuda is not available"):
            load_model(folder, device="cuda")
    save_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(StartupFailure, match="cannot be loaded"):
        load_model(tmp_path)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    """Unpickling runs whatever the file says."""
    ran = tmp_path / "ran"
    save_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(str(ran))))
    with pytest.raises(StartupFailure, match="holds no .safetensors file; pickled weights"):
        load_model(tmp_path)
    assert not ran.exists()


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    saved = save_model(tmp_path)
    config = json.loads((saved / "config.json").read_text())
    config["model_type"] = "somebodys"
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (saved / "config.json").write_text(json.dumps(config))
    (saved / "own.py").write_text(f"open({str(saved / 'ran')!r}, 'w')\n")
    with pytest.raises(StartupFailure, match="cannot be loaded"):
        load_model(saved)
    assert not (saved / "ran").exists()


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    saved = save_model(tmp_path)
    deeper = llama_config(num_hidden_layers=3)
    deeper.architectures = ["LlamaForCausalLM"]
    deeper.save_pretrained(saved)
    with pytest.raises(StartupFailure, match=r"lacks weights: model\.layers\.2"):
        load_model(saved)
