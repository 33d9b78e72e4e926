"""A model split over two processes gives the output of one process."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig

from draftloop import logs
from draftloop.errors import DraftloopError, StartupFailure
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.ranks import Ranks
from draftloop.runtime.tensor_parallel import require_splittable
from tests.support.families import FAMILIES
from tests.support.quantized_checkpoints import KINDS, save_quantized
from tests.support.toy_model import llama_config, load_model, save_model

RANKS = 2
PREPARE = functools.partial(logs.configure, "verifier", log_format="json", level="error")
BIASED = llama_config(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
PROMPT = list(range(5, 12))
# Two branches and their ends; the text continues with the second branch.
NODES, PARENTS, TAKEN = (3, 4, 5, 6, 7), (-1, -1, 0, 1, 2), (4, 6)


def save_model_with_biases(folder: Path, config: PretrainedConfig) -> Path:
    """The model with nonzero biases, so that a bias added by every rank would show."""
    save_model(folder, config)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("bias"):
            weights[name] = torch.linspace(-0.5, 0.5, len(weight))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Ranks]]:
    """Collects started ranks and stops them; the process's settings are restored."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    threads, started = torch.get_num_threads(), list[Ranks]()
    yield started
    for each in started:
        each.stop()
    torch.set_num_threads(threads)


def logits_after_moves(model: LanguageModel) -> torch.Tensor:
    """Logits after a prompt, of a tree, after its second branch, and in a copied slot.

    So rows are moved and copied while their heads are on two ranks.
    """
    slot, other = model.acquire(), model.acquire()
    prompt = model.forward([Forward(model, slot, PROMPT, logits_from=len(PROMPT) - 1)])[0]
    tree = model.forward([Forward(model, slot, (), NODES, PARENTS)])[0]
    slot.advance([*PROMPT, *TAKEN])
    assert slot.length == len(PROMPT) + len(TAKEN)
    model.cache.copy(slot.index, other.index, 0, slot.length)
    other.length = slot.length
    last = model.forward([Forward(model, slot, [9, 8]), Forward(model, other, [2])])
    return torch.cat([prompt, tree, *last])


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(BIASED, id="llama with biases"),
        pytest.param(FAMILIES["qwen3"], id="qwen3"),
        pytest.param(FAMILIES["mixtral"], id="mixtral"),
    ],
)
def test_split_model_matches_the_whole_model(
    config: PretrainedConfig, ranks: list[Ranks], tmp_path: Path
) -> None:
    """Models that only transformers' own wrappers run are included, such as those with experts."""
    folder = save_model_with_biases(tmp_path, config)
    options = ModelOptions(
        folder=folder, max_sessions=4, max_draft_nodes=24, tensor_parallel_size=RANKS
    )
    ranks.append(Ranks(options, PREPARE))
    split, whole = ranks[0].model(), load_model(folder)
    assert split.cache.shape.kv_heads == whole.cache.shape.kv_heads // RANKS
    assert split.parameters == whole.parameters
    assert split.info().place == "2 x cpu"
    torch.testing.assert_close(
        logits_after_moves(split), logits_after_moves(whole), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("family", "options", "error"),
    [
        ("llama", {"tensor_parallel_size": 3}, "must divide the model's 2 heads of keys; got 3"),
        ("gpt2", {}, "tensor_parallel_size: transformers has no plan to split gpt2"),
        ("llama", {"inflate": "1M"}, "inflate: must not be given with tensor_parallel_size"),
        ("llama", {"device": "cuda:1"}, "device: must be cuda or cpu with tensor_parallel_size"),
    ],
)
def test_unsplittable_models_are_refused(
    family: str, options: dict[str, Any], error: str, tmp_path: Path
) -> None:
    """A model that cannot be split is refused before any process is started."""
    folder = save_model(tmp_path, FAMILIES[family])
    model_options = ModelOptions(**{"folder": folder, "tensor_parallel_size": RANKS, **options})
    with pytest.raises(DraftloopError) as caught:
        require_splittable(model_options)
    assert error in str(caught.value)


def test_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    """Ranks would have to split packed blocks of weights."""
    save_quantized(tmp_path, KINDS["fp8"])
    options = ModelOptions(folder=tmp_path, tensor_parallel_size=RANKS)
    with pytest.raises(StartupFailure, match="are quantized by fp8, and cannot be split"):
        require_splittable(options)


def test_split_and_quantized_phi3_is_refused(ranks: list[Ranks], tmp_path: Path) -> None:
    """All ranks refuse such a model, and the first one reports it."""
    options = ModelOptions(
        folder=save_model(tmp_path, FAMILIES["phi3"]),
        quantization="int8",
        tensor_parallel_size=RANKS,
    )
    ranks.append(Ranks(options, PREPARE))
    with pytest.raises(DraftloopError, match="phi3 cannot be split and quantized at once"):
        ranks[0].model()
