"""A model split between two processes computes the same as in one process."""

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
# Two branches, of three and of two nodes; the text continues with the second.
NODES, PARENTS, TAKEN = (3, 4, 5, 6, 7), (-1, -1, 0, 1, 2), (4, 6)


def saved(folder: Path, config: PretrainedConfig) -> Path:
    """A saved model with nonzero biases: a bias that every rank added would show."""
    save_model(folder, config)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("bias"):
            weights[name] = torch.linspace(-0.5, 0.5, len(weight))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Ranks]]:
    """The ranks appended to this list are stopped, and the process is restored."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    threads, started = torch.get_num_threads(), list[Ranks]()
    yield started
    for each in started:
        each.stop()
    torch.set_num_threads(threads)


def said(model: LanguageModel) -> torch.Tensor:
    """Logits after a prompt, in a tree, after its second branch, and in a slot with a copy.

    So rows of the KV cache are moved and copied while their heads are on two ranks.
    """
    slot, other = model.acquire(), model.acquire()
    prompt = model.forward([Forward(model, slot, PROMPT, logits_from=len(PROMPT) - 1)])[0]
    tree = model.forward([Forward(model, slot, (), NODES, PARENTS)])[0]
    slot.advance([*PROMPT, *TAKEN])
    assert slot.length == len(PROMPT) + len(TAKEN)
    model.cache.copy(slot.index, other.index, 0, slot.length)
    other.length = slot.length
    behind = model.forward([Forward(model, slot, [9, 8]), Forward(model, other, [2])])
    return torch.cat([prompt, tree, *behind])


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(BIASED, id="llama with biases"),
        pytest.param(FAMILIES["qwen3"], id="qwen3"),
        pytest.param(FAMILIES["mixtral"], id="mixtral"),
    ],
)
def test_the_same_as_whole(config: PretrainedConfig, ranks: list[Ranks], tmp_path: Path) -> None:
    """Also models that run through transformers' own wrappers, such as those with experts."""
    folder = saved(tmp_path, config)
    options = ModelOptions(
        folder=folder, max_sessions=4, max_draft_nodes=24, tensor_parallel_size=RANKS
    )
    ranks.append(Ranks(options, PREPARE))
    split, whole = ranks[0].model(), load_model(folder)
    assert split.cache.shape.kv_heads == whole.cache.shape.kv_heads // RANKS
    assert split.parameters == whole.parameters
    assert split.info().place == "2 x cpu"
    torch.testing.assert_close(said(split), said(whole), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "options", "complaint"),
    [
        ("llama", {"tensor_parallel_size": 3}, "must divide the model's 2 heads of keys; got 3"),
        ("gpt2", {}, "tensor_parallel_size: transformers has no plan to split gpt2"),
        ("llama", {"inflate": "1M"}, "inflate: must not be given with tensor_parallel_size"),
        ("llama", {"device": "cuda:1"}, "device: must be cuda or cpu with tensor_parallel_size"),
    ],
)
def test_what_cannot_be_split(
    family: str, options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    """The error comes before any process is started."""
    folder = save_model(tmp_path, FAMILIES[family])
    wanted = ModelOptions(**{"folder": folder, "tensor_parallel_size": RANKS, **options})
    with pytest.raises(DraftloopError) as caught:
        require_splittable(wanted)
    assert complaint in str(caught.value)


def test_a_checkpoint_with_quantized_weights(tmp_path: Path) -> None:
    """Ranks would have to cut packed values that stand for blocks of weights."""
    save_quantized(tmp_path, KINDS["fp8"])
    wanted = ModelOptions(folder=tmp_path, tensor_parallel_size=RANKS)
    with pytest.raises(StartupFailure, match="are quantized by fp8, and cannot be split"):
        require_splittable(wanted)


def test_what_can_only_be_split_or_quantized(ranks: list[Ranks], tmp_path: Path) -> None:
    """All ranks refuse it, and this process reports the error."""
    options = ModelOptions(
        folder=save_model(tmp_path, FAMILIES["phi3"]),
        quantization="int8",
        tensor_parallel_size=RANKS,
    )
    ranks.append(Ranks(options, PREPARE))
    with pytest.raises(DraftloopError, match="phi3 cannot be split and quantized at once"):
        ranks[0].model()
