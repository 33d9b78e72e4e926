"""Models are compared with transformers before they are served; one that differs is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    BertConfig,
    BloomConfig,
    DeepseekV2Config,
    DiffLlamaConfig,
    DogeConfig,
    Gemma3Config,
    GPTJConfig,
    MambaConfig,
    Phi3Config,
    PLBartConfig,
    PretrainedConfig,
    StableLmConfig,
)

from draftloop.errors import Mismatch, StartupFailure
from draftloop.runtime.forward import Forward
from draftloop.runtime.reference import Reference
from tests.support.families import OWN_HEADS, WIDE
from tests.support.toy_model import load_model, save_model

TO_ITSELF = "does not leave its attention to transformers"
OTHER_WORDS = "what it says of a short text differs from what transformers says, by [0-9.]+ of"
REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "a look ahead": (BertConfig(**{**WIDE, "num_key_value_heads": 4}), OTHER_WORDS),
    "two softmaxes a layer": (DiffLlamaConfig(**WIDE), OTHER_WORDS),
    # Hardly any of its logits depend on attention.
    "a look ahead by little": (
        BertConfig(**{**WIDE, "num_key_value_heads": 4, "initializer_range": 0.02}), OTHER_WORDS
    ),
    "positions that it counts itself": (
        PLBartConfig(**OWN_HEADS, decoder_layers=2, decoder_attention_heads=4, d_model=32),
        "counts positions itself",
    ),
    "a bias by distance": (BloomConfig(**WIDE), TO_ITSELF),
    "a bias by key that the layer learned": (DogeConfig(**WIDE), TO_ITSELF),
    "the same and a window": (
        DogeConfig(**WIDE, sliding_window=32),
        "cannot be run here|leave its",
    ),
    "any length": (BloomConfig(**{**WIDE, "max_position_embeddings": None}), "max_position_emb"),
    "attention of its own": (GPTJConfig(**WIDE, rotary_dim=4), TO_ITSELF),
    "arguments not passed on": (StableLmConfig(**WIDE), TO_ITSELF),
    "no attention": (MambaConfig(**WIDE), "does not say how long a text|linear_attention"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_model_with_different_logits_is_refused(tmp_path: Path, case: str) -> None:
    config, error = REFUSED[case]
    with pytest.raises(StartupFailure, match=f"^model: .*({error})"):
        load_model(save_model(tmp_path, config))


def test_model_that_cannot_run_is_reported_with_its_error(tmp_path: Path) -> None:
    folder = save_model(tmp_path, DeepseekV2Config(**{**WIDE, "num_key_value_heads": 4}))
    with pytest.raises(StartupFailure, match="^model: deepseek_v2 cannot be run here: topk"):
        load_model(folder)


def test_dtype_overflow_in_the_reference_is_reported(tmp_path: Path) -> None:
    # The error for such a model names the dtypes that would work.
    folder = save_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][7] = torch.finfo(torch.float16).max
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_model(folder).row_by_row
    error = r"what llama says of a short text is no finite number \(NaN or infinite\) in float16; "
    with pytest.raises(StartupFailure, match=f"^model: {error}serve it in float32 or bfloat16$"):
        load_model(folder, dtype="float16")


def test_non_finite_logits_of_our_runtime_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The reference is finite here, and only our own forward returns NaN.
    def forward(forwards: Sequence[Forward]) -> list[Tensor]:
        return [torch.full((one.rows - one.logits_from, 96), torch.nan) for one in forwards]

    model, reference = load_model(save_model(tmp_path)), Reference([1], [2, 3], torch.randn(3, 96))
    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(StartupFailure, match="no finite number .* in float32; serve a model with"):
        reference.require_same(model)


@pytest.mark.parametrize("limits", [
    {"context_length": 1}, {"context_length": 2}, {"context_length": 3}, {"max_draft_nodes": 1},
], ids=str)  # fmt: skip
def test_models_with_small_limits_can_be_served(tmp_path: Path, limits: dict[str, int]) -> None:
    model = load_model(save_model(tmp_path), **limits)
    model.warm_up()
    model.measure_costs()
    assert model.cost_curve


def test_distance_to_the_reference_is_large_for_nan_logits() -> None:
    # NaN logits never count as close to the reference.
    reference = Reference([1], [2, 3], torch.randn(3, 8))
    assert reference.distance(reference.logits, [0, 1, 2]) == 0
    assert reference.distance(reference.logits[1:], [1, 2]) == 0
    assert not reference.distance(reference.logits * float("nan"), [0, 1, 2]) <= 1
    assert reference.distance(reference.logits.flip(0), [0, 1, 2]) > 0.5


def test_longer_session_in_the_batch_does_not_change_positions(tmp_path: Path) -> None:
    """LongRoPE uses other angles for long texts; all sessions must use the same."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 1.5]}
    config = Phi3Config(
        **WIDE,
        original_max_position_embeddings=32,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors},
    )
    model = load_model(save_model(tmp_path, config))
    text, long = [5, 17, 3, 88, 41], list(range(1, 65))
    slots = [model.acquire() for _ in range(3)]
    (alone,) = model.forward([Forward(model, slots[0], text)])
    batched, _ = model.forward(
        [Forward(model, slots[1], text), Forward(model, slots[2], long, logits_from=63)]
    )
    torch.testing.assert_close(batched, alone, rtol=1e-5, atol=1e-5)
    whole = load_model(tmp_path, context_length=32)
    (short,) = whole.forward([Forward(whole, whole.acquire(), text)])
    assert not torch.allclose(short, alone, atol=1e-2)  # up to 32 the short factors are right
    with pytest.raises(Mismatch):  # so the two are not replicas of one model
        model.info().require_same_model(whole.info())
    for context_length in (33, 64):
        other = load_model(tmp_path, context_length=context_length)
        model.info().require_same_model(other.info())


def test_multimodal_model_is_served_for_text(tmp_path: Path) -> None:
    """The sizes of such a model are those of its part for text."""
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "image_size": 28}
    config = Gemma3Config(
        text_config={**WIDE, "head_dim": 24, "num_key_value_heads": 1},
        vision_config={**vision, "num_attention_heads": 2, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    model = load_model(save_model(tmp_path, config))
    assert (model.cache.shape.kv_heads, model.cache.shape.head_dim) == (1, 24)
    assert model.vocabulary_size == WIDE["vocab_size"]
