"""Attention for training: torch's values and gradients, but faster."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from models.architecture import build, configuration  # noqa: E402
from models.attention import BLOCK, NAME, BlockedCausal  # noqa: E402
from models.repeat import record, records  # noqa: E402
from models.tokenizer import END_OF_TEXT_ID  # noqa: E402
from models.train import next_token_loss  # noqa: E402


@pytest.mark.parametrize("length", [7, BLOCK, 2 * BLOCK + 5])
def test_values_and_gradients_match_torch(length: int) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, length, 16, dtype=torch.float32) for _ in range(3)]
    gradient = torch.randn(2, 3, length, 16)
    results = []
    for attend in (
        BlockedCausal.apply,
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    ):
        inputs = [part.clone().requires_grad_() for part in parts]
        attended = attend(*inputs)
        attended.backward(gradient)
        results.append([attended, *(part.grad for part in inputs)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_large_scores_are_not_rounded() -> None:
    """In bfloat16, two scores near 300 that differ by 1 would be equal."""
    query = torch.full((1, 1, 2, 16), 4.0).bfloat16()
    key = torch.full((1, 1, 2, 16), 18.75).bfloat16()
    key[..., 1, :8] = 18.625
    value = torch.eye(2, 16)[None, None].bfloat16()
    first, second = BlockedCausal.apply(query, key, value)[0, 0, 1, :2].tolist()
    assert first == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item(), abs=0.01)
    assert second == pytest.approx(1 - first, abs=0.01)


def test_training_loss_matches_torch_attention() -> None:
    model = build(configuration(hidden=32, layers=2, intermediate=48), seed=0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(0, 4096, (2, 40))
    expected = next_token_loss(model, tokens)
    model.set_attn_implementation(NAME)
    torch.testing.assert_close(next_token_loss(model, tokens), expected)


def test_records_of_repeated_tokens_can_mostly_be_copied() -> None:
    """Runs of eight tokens seen before are most of a record, and none of its first passage."""
    import numpy as np

    drawn = record(1024, np.random.default_rng(3)).tolist()
    assert len(drawn) == 1024 and drawn[0] == END_OF_TEXT_ID
    runs = [tuple(drawn[n : n + 8]) for n in range(len(drawn) - 8)]
    copyable = sum(run in set(runs[:n]) for n, run in enumerate(runs))
    assert copyable > 0.4 * len(runs)
    assert not any(run in set(runs[:n]) for n, run in enumerate(runs[:90]))


def test_records_fill_whole_blocks() -> None:
    stream = records(5000, seed=1)
    assert len(stream) == 6144 and stream.min() >= 0 and stream.max() < 4096
