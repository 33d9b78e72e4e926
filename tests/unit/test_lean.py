"""The lean decoder computes what transformers computes with the same model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from draftloop.errors import StartupFailure
from draftloop.runtime import cpu_linear
from draftloop.runtime import model as runtime_model
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from tests.support.toy_model import SIZES, llama_config, save_model

pytestmark = pytest.mark.skipif(cpu_linear.UNIT is None, reason="no kernel for this machine")
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": llama_config(),
    "llama with biases": llama_config(attention_bias=True, mlp_bias=True),
    "llama 3": llama_config(
        rope_scaling={
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    ),
    "mistral": MistralConfig(**SIZES, sliding_window=8, initializer_range=0.3),
    "phi3": Phi3Config(**{**SIZES, "pad_token_id": 1}, initializer_range=0.3, sliding_window=9),
    "phi3 for long texts": Phi3Config(
        **{**SIZES, "pad_token_id": 1}, initializer_range=0.3, original_max_position_embeddings=32,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4,
            "long_factor": [4.0, 3.0, 2.0, 1.5],
        },
    ),
    "qwen2": Qwen2Config(**SIZES, initializer_range=0.3),
    "qwen2 with windows": Qwen2Config(
        **SIZES, initializer_range=0.3, use_sliding_window=True, sliding_window=6,
        max_window_layers=1,
    ),
    "qwen3": Qwen3Config(**SIZES, initializer_range=0.3, head_dim=16),
    "qwen3 with windows": Qwen3Config(
        **SIZES, initializer_range=0.3, head_dim=32, use_sliding_window=True, sliding_window=6,
        max_window_layers=1,
    ),
}  # fmt: skip


def load(folder: Path, dtype: str = "bfloat16", **options: Any) -> LanguageModel:
    return LanguageModel(ModelOptions(folder=folder, dtype=dtype, max_sessions=1, **options))


def is_lean(model: LanguageModel) -> bool:
    """Whether forward passes bypass transformers' Python code."""
    return model._lean is not None


def logits(model: LanguageModel) -> torch.Tensor:
    """The logits after a prompt and of a small tree."""
    slot = model.acquire()
    prompt = model.forward([Forward(model, slot, list(range(1, 40)), logits_from=20)])[0]
    tree = model.forward([Forward(model, slot, [7], [9, 8, 7, 6], [-1, 0, 0, -1])])[0]
    return torch.cat([prompt, tree])


def with_distinct_norms(folder: Path) -> Path:
    """The model with norms and biases whose values differ."""
    network = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    network.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_lean_decoder_matches_transformers(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_linear, "available", lambda: True)
    folder = with_distinct_norms(save_model(tmp_path, FAMILIES[family]))
    lean = load(folder, dtype)
    monkeypatch.setattr(runtime_model, "is_lean", lambda network: False)
    reference = load(folder, dtype)
    assert is_lean(lean) and not is_lean(reference)
    # In float32, torch's vectors and the loop for the remaining elements differ in the last bit,
    # and the joined matrices change where these small sizes end. Rounding to bfloat16 hides it.
    tolerance = 0.0 if dtype == "bfloat16" else 1e-5
    torch.testing.assert_close(logits(lean), logits(reference), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_lean_decoder_without_kernels_matches_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is how a GPU, or a CPU without the kernels, runs the model."""
    monkeypatch.setattr(cpu_linear, "UNIT", None)
    folder = with_distinct_norms(save_model(tmp_path, FAMILIES[family]))
    lean = load(folder, "float32")
    assert is_lean(lean) and lean.prepared is None
    monkeypatch.setattr(runtime_model, "is_lean", lambda network: False)
    torch.testing.assert_close(logits(lean), logits(load(folder, "float32")), rtol=1e-5, atol=1e-5)


def test_window_longer_than_the_context_hides_nothing(tmp_path: Path) -> None:
    """Phi-3's windows are often longer than what is served; it used to miss the fast path."""
    config = MistralConfig(**SIZES, sliding_window=64, initializer_range=0.3)
    save_model(tmp_path, config)
    whole = load(tmp_path, "float32", context_length=64, max_draft_nodes=8)
    cut = load(tmp_path, "float32", context_length=32, max_draft_nodes=8)
    assert [layer.window for layer in whole._lean._layers] == [64] * len(whole._lean._layers)  # type: ignore[union-attr]
    assert {layer.window for layer in cut._lean._layers} == {None}  # type: ignore[union-attr]
    assert (cut.prepared is None) == (cpu_linear.UNIT is None) and whole.prepared is None


def test_llama_under_another_name_has_no_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InternLM3 is run by Llama's class, which ignores the window of a configuration."""
    internlm3 = pytest.importorskip("transformers.models.internlm3")  # not in transformers 5.17
    config = internlm3.InternLM3Config(
        **{**SIZES, "pad_token_id": 1}, initializer_range=0.3, head_dim=8, sliding_window=8
    )
    lean = load(save_model(tmp_path, config), "float32")
    assert is_lean(lean)
    monkeypatch.setattr(runtime_model, "is_lean", lambda network: False)
    whole = load(tmp_path, "float32")
    torch.testing.assert_close(logits(lean), logits(whole), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own use of it
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for what torch writes")
@pytest.mark.parametrize(
    ("family", "bits"), [("qwen3", ""), ("llama with biases", "w8a8"), ("qwen3", "w4a8")]
)
def test_torch_compile_gives_the_same_logits(
    family: str, bits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row and several rows take one compilation each, for all layers."""
    folder = with_distinct_norms(save_model(tmp_path, FAMILIES[family]))
    monkeypatch.setattr(cpu_linear, "UNIT", None)
    eager = load(folder, "float32", quantization=bits)
    monkeypatch.undo()
    torch.compiler.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        compiled = load(folder, "float32", quantization=bits, torch_compile=True)
        compiled_logits = logits(compiled)
    assert is_lean(compiled) and compiled.prepared is None
    assert counters["frames"]["ok"] == 4
    torch.testing.assert_close(compiled_logits, logits(eager), rtol=1e-5, atol=1e-5)


def test_torch_compile_is_refused_for_other_architectures(tmp_path: Path) -> None:
    """A model that runs through transformers' code is refused."""
    config = Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=8)
    with pytest.raises(StartupFailure, match="torch_compile: gemma3_text runs by transformers"):
        load(save_model(tmp_path, config), torch_compile=True)


def test_torch_compile_failure_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: Any, **__: Any) -> None:
        raise TorchDynamoException("no compiler")

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: raise_error)
    with pytest.raises(StartupFailure, match="torch_compile: .*no compiler.*leave it out"):
        load(save_model(tmp_path, llama_config()), torch_compile=True)


@pytest.mark.parametrize(
    "config",
    [
        Phi3Config(
            **{**SIZES, "pad_token_id": 1},
            head_dim=16,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        ),
        llama_config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    ],  # fmt: skip
    ids=["heads that are turned in part", "angles that depend on the length"],
)
def test_unsupported_models_run_through_transformers(
    config: PretrainedConfig, tmp_path: Path
) -> None:
    model = load(save_model(tmp_path, config))
    assert not is_lean(model)
    assert logits(model).isfinite().all()


def test_out_of_memory_forward_does_not_affect_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed allocation, buffers used to have other sizes than recorded, or to be freed."""
    save_model(tmp_path, llama_config())
    model, text = load(tmp_path), [5, 3, 8, 1] * 30

    def forward_rows(count: int) -> torch.Tensor:
        slot = model.acquire()
        try:
            return model.forward([Forward(model, slot, text[:count])])[0].clone()
        finally:
            model.cache.release(slot)

    expected, empty, allocations = forward_rows(4), torch.empty, [0]

    def empty_or_raise(*shape: int, **named: Any) -> torch.Tensor:
        allocations[0] += 1
        if allocations[0] == 5:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return empty(*shape, **named)

    with monkeypatch.context() as patched:
        patched.setattr("draftloop.runtime.cpu_stack.torch.empty", empty_or_raise)
        with pytest.raises(RuntimeError, match="allocate"):
            forward_rows(120)
    fresh = load(tmp_path)
    assert torch.equal(forward_rows(4), expected)
    slot = fresh.acquire()
    assert torch.equal(forward_rows(120), fresh.forward([Forward(fresh, slot, text)])[0])
