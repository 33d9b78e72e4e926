"""Distillation of a draft model: its teacher and state, its texts, its objective."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from models.architecture import build, configuration  # noqa: E402
from models.distill import (  # noqa: E402
    RUNS_BY_MODEL,
    Distillation,
    first_state,
    tempered_divergence,
    tempered_rejection,
)
from models.layout import DRAFTERS  # noqa: E402
from models.muon import Rates  # noqa: E402
from models.packing import BLOCK, GROUP_BLOCKS, ROUND, Mixture, Windows  # noqa: E402
from models.schedule import Phase, Schedule  # noqa: E402
from models.setting import Setting  # noqa: E402
from models.streams import training_text  # noqa: E402
from models.train import next_token_loss  # noqa: E402

GROUP = BLOCK * GROUP_BLOCKS
SMALL = configuration(hidden=32, layers=2, intermediate=48)
PHASE = Phase(until=1.0, layers=2, length=16, batch=2, micro=1)


def test_self_distillation_has_no_divergence() -> None:
    logits = torch.randn(5, 11)
    assert tempered_divergence(logits, logits, 0.7).item() == pytest.approx(0, abs=1e-6)
    model = build(SMALL, seed=0)
    tokens = torch.arange(17)[None]
    mixed = Distillation(model, truth_share=0.1)(model, tokens)
    assert mixed.item() == pytest.approx(0.1 * next_token_loss(model, tokens).item(), rel=1e-4)
    overlapping = Distillation(model, truth_share=0.1, overlap_share=0.5)(model, tokens)
    assert overlapping.item() == pytest.approx(mixed.item(), rel=1e-4)


def test_rejection_rate_is_one_minus_the_overlap() -> None:
    # The rate of rejection is the total variation distance of the two distributions.
    target = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).log()
    drafted = torch.tensor([[0.5, 0.1, 0.4], [0.8, 0.1, 0.1]]).log()
    assert tempered_rejection(target, drafted, 1.0).item() == pytest.approx((0.2 + 0.7) / 2)
    mixed = Distillation(build(SMALL, seed=0), overlap_share=0.25).divergence(target, drafted, 1.0)
    divergence = tempered_divergence(target, drafted, 1.0)
    assert mixed.item() == pytest.approx(0.75 * divergence.item() + 0.25 * 0.45)


def windows_of(*counts: int) -> list[Windows]:
    """Texts with these numbers of token groups; every token is the text's index in this list."""
    return [
        Windows(np.full(count * GROUP + 1, number, dtype=np.int16), seed=1)
        for number, count in enumerate(counts)
    ]


def test_each_text_of_a_mixture_has_its_share_of_each_round() -> None:
    texts = windows_of(1, 2, 1)
    mixture = Mixture(list(zip(texts, (0.25, 0.65, 0.1), strict=True)), seed=1)
    for first in (0, 3 * ROUND):
        text_numbers = mixture.batch(first, ROUND, 16)[:, 0]
        assert [(text_numbers == number).sum() for number in range(3)] == [50, 130, 20]
    assert (text_numbers[: ROUND // 2] == 1).sum() > 40  # from all parts of it


def test_mixture_keeps_the_window_order_of_each_text() -> None:
    numbered = Windows((np.arange(GROUP + 1) % 30_000).astype(np.int16), seed=1)
    constant = windows_of(1)[0]
    mixture = Mixture([(numbered, 0.5), (constant, 0.5)], seed=2)
    rows = mixture.batch(0, 600, BLOCK)  # more than the 256 of two passes
    shown = rows[rows[:, 1] != 0]
    assert torch.equal(shown, numbered.batch(0, len(shown), BLOCK)) and len(shown) == 300
    assert torch.equal(rows[77:80], mixture.batch(77, 3, BLOCK))


@pytest.mark.parametrize("shares", [(0.7, 0.5), (1.2,), (-0.1, 1.1), (0.0, 1.0), (0.5, 0.4)])
def test_invalid_shares_are_refused(shares: tuple[float, ...]) -> None:
    texts = windows_of(*[1] * len(shares))
    with pytest.raises(ValueError, match="together 1"):
        Mixture(list(zip(texts, shares, strict=True)), seed=1)


def test_training_text_gets_the_remaining_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("TRAIN", 1), ("REVISED", 2), ("REPEATED", 3)):
        file = tmp_path / f"{name}.npy"
        np.save(file, np.full(GROUP + 1, number, dtype=np.int16))
        monkeypatch.setattr(f"models.streams.{name}_TOKENS", file)
    options = argparse.Namespace(sampled_share=0.0, revised_share=0.3, repeated_share=0.1, seed=5)
    text_numbers = training_text(options).batch(0, ROUND, 16)[:, 0]
    assert [(text_numbers == number).sum() for number in (1, 2, 3)] == [120, 60, 20]
    options.repeated_share = 0.7
    assert set(training_text(options).batch(0, ROUND, 16)[:, 0].tolist()) == {2, 3}
    options.repeated_share = 0.8
    with pytest.raises(ValueError, match="together 1"):
        training_text(options)
    options.revised_share = options.repeated_share = 0.0
    assert isinstance(training_text(options), Windows)


def distillation_run(folder: Path, **changes: Any) -> tuple[Setting, argparse.Namespace]:
    """The setting of a new run of `models.distill`, and its options."""
    setting = Setting(
        file=folder / "own.pt",
        schedule=Schedule(tokens=1000, phases=(PHASE,)),
        rates=Rates(),
        windows=Windows(np.zeros(BLOCK * GROUP_BLOCKS + 1, dtype=np.int16), seed=0),
        objective=next_token_loss,
        workers=1,
    )
    options = {"model": "drafter", "start_from": None, "seed": 0, **changes}
    return setting, argparse.Namespace(**options)


def test_distillation_starts_only_from_the_named_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped name used to start training from scratch."""
    monkeypatch.setattr("models.layout.CACHE_DIR", tmp_path)
    teacher = build(SMALL, seed=1)
    first_run = first_state(*distillation_run(tmp_path), teacher)
    first_run.save(tmp_path / "first.pt")
    again = first_state(*distillation_run(tmp_path, start_from="first", seed=1), teacher)
    for name, tensor in first_run.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    with pytest.raises(FileNotFoundError, match="frist"):
        first_state(*distillation_run(tmp_path, start_from="frist"), teacher)


def test_distillation_refuses_the_state_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.layout.CACHE_DIR", tmp_path)
    teacher = build(SMALL, seed=1)
    setting, options = distillation_run(tmp_path)
    small = first_state(setting, options, teacher)
    for name in ("other", "own"):  # to start from, and to continue
        small.save(tmp_path / f"{name}.pt")
        run = distillation_run(tmp_path, model="drafter-large", start_from="other")
        with pytest.raises(ValueError, match=f"run '{name}' has a hidden size of 128"):
            first_state(*run, teacher)
    assert len(set(RUNS_BY_MODEL.values())) == len(DRAFTERS) == len(RUNS_BY_MODEL)
