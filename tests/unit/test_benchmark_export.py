"""The bundled pair as other servers load it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.export import DRAFT, TARGET, export_pair
from benchmarks.gguf_file import write_gguf
from benchmarks.uniform import uniform
from draftloop.config import bundled_model
from draftloop.errors import InvalidInput
from draftloop.runtime.inflate import count_parameters

IDS = torch.tensor([[5, 260, 17, 900, 41, 7, 3000]])


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


def tiny() -> LlamaForCausalLM:
    """A random model with two layers and grouped heads."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def test_uniform_model_has_the_size_asked_for_and_the_same_outputs() -> None:
    model = LlamaForCausalLM.from_pretrained(bundled_model("verifier"), dtype=torch.float32)
    larger = uniform(model, 100_000_000)
    assert 95_000_000 < count_parameters(larger) <= 100_000_000
    assert len({layer.mlp.gate_proj.out_features for layer in larger.model.layers}) == 1
    assert torch.allclose(logits(larger), logits(model), atol=1e-4)


def test_uniform_model_is_refused_below_the_size_of_the_model() -> None:
    with pytest.raises(InvalidInput, match=r"inflate: must exceed the model's [\d,]+ parameters"):
        uniform(tiny(), 10_000)


def test_exported_folders_are_checkpoints_with_the_tokenizer(tmp_path: Path) -> None:
    folders = export_pair(tmp_path, 40_000_000)
    assert folders == {TARGET: tmp_path / TARGET, DRAFT: tmp_path / DRAFT}
    target = LlamaForCausalLM.from_pretrained(folders[TARGET])
    assert target.dtype == torch.bfloat16
    assert 35_000_000 < count_parameters(target) <= 40_000_000
    for folder in folders.values():
        assert (folder / "tokenizer.json").read_bytes() == (
            bundled_model("verifier") / "tokenizer.json"
        ).read_bytes()


@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 1e-5), ("bf16", 1e-5), ("q8_0", 0.2)])
def test_gguf_file_has_the_same_model(kind: str, tolerance: float, tmp_path: Path) -> None:
    """transformers' own reader of GGUF undoes names and the order of rotary components."""
    folder = bundled_model("drafter")  # its weights are exact in bfloat16
    write_gguf(folder, tmp_path / "model.gguf", kind)
    read = LlamaForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32, local_files_only=True
    )
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert (logits(read) - logits(model)).abs().mean() < tolerance
