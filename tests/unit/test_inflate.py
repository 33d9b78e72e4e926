"""Cost inflation: a larger model with the same output bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma4TextConfig,
    GPT2Config,
    GraniteSWAConfig,
    MistralConfig,
    PreTrainedModel,
    SmolLM3Config,
)

from draftloop.errors import InvalidInput
from draftloop.runtime.forward import Forward
from draftloop.runtime.inflate import count_parameters, inflate, parse_size
from tests.support.toy_model import SIZES, load_model, save_model

TOKENS = [5, 17, 3, 88, 41, 2, 60]
SIZE = 3_000_000


KINDS = {
    "llama": None,
    "mistral": MistralConfig(**SIZES, sliding_window=4),
    "granite_swa": GraniteSWAConfig(**{**SIZES, "pad_token_id": 1}, sliding_window=4),
    "smollm3": SmolLM3Config(**{**SIZES, "pad_token_id": 1}),
}


@pytest.fixture(scope="module", params=list(KINDS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), KINDS[request.param])


def load_network_of(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return loaded.eval()


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inflated_model_has_the_same_bits_in_transformers(folder: Path, dtype: torch.dtype) -> None:
    plain, inflated = load_network_of(folder, dtype), load_network_of(folder, dtype)
    inflate(inflated, SIZE)
    assert count_parameters(inflated) == pytest.approx(SIZE, rel=0.05)
    tokens = torch.tensor([TOKENS])
    assert torch.equal(plain(tokens).logits, inflated(tokens).logits)
    assert inflated.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_inflated_model_has_the_same_bits_in_our_runtime(folder: Path, dtype: str) -> None:
    plain, inflated = load_model(folder, dtype=dtype), load_model(folder, dtype=dtype, inflate="3M")
    assert len(inflated.cache.keys) == 12 > len(plain.cache.keys)
    assert inflated.parameters == pytest.approx(SIZE, rel=0.05)
    first, second = (
        model.forward([Forward(model, model.acquire(), TOKENS, [1, 2], [-1, -1])])[0]
        for model in (plain, inflated)
    )
    assert torch.equal(first, second)


def test_inflated_model_generates_the_same_text(folder: Path) -> None:
    plain, inflated = load_network_of(folder), load_network_of(folder)
    inflate(inflated, SIZE)
    prompt = torch.tensor([TOKENS])
    texts = [
        model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0).tolist()
        for model in (plain, inflated)
    ]
    assert texts[0] == texts[1]


def test_added_layers_have_weights_that_cost_time(folder: Path) -> None:
    inflated = load_network_of(folder)
    inflate(inflated, SIZE)
    layer: nn.Module = inflated.get_decoder().layers[-1]
    assert float(layer.get_parameter("mlp.up_proj.weight").detach().std()) > 0.01
    assert not layer.get_parameter("mlp.down_proj.weight").any()


@pytest.mark.parametrize(
    ("text", "size"), [("", 0), ("300M", 300_000_000), ("1.5b", 1_500_000_000)]
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["big", "300", "-1M", "1G", "0M"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_size(text)
    assert str(caught.value) == f"inflate: must be a size such as 300M or 1B; got {text!r}"


def test_size_below_the_models_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"inflate: must exceed the model's [\d,]+ param.*got 9"):
        inflate(load_network_of(folder), 9)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=96, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    with pytest.raises(InvalidInput, match="inflate: needs a model whose layers end in o_proj"):
        inflate(load_network_of(save_model(tmp_path, config)), SIZE)


def test_layers_that_depend_on_their_number_are_refused(tmp_path: Path) -> None:
    config = Gemma4TextConfig(
        **{**SIZES, "num_hidden_layers": 4, "pad_token_id": 1}, head_dim=8, global_head_dim=8,
        num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2,
        vocab_size_per_layer_input=96, hidden_size_per_layer_input=8,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="inflate: needs a model whose layers do not depend"):
        inflate(load_network_of(save_model(tmp_path, config)), SIZE)
