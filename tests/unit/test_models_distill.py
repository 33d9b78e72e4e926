"""What a draft model is distilled from, on and for: the states, the texts, the objective."""

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
from models.packing import BLOCK, GROUP_BLOCKS, Windows, mixed  # noqa: E402
from models.schedule import Phase, Schedule  # noqa: E402
from models.team import Setting  # noqa: E402
from models.train import next_token_loss  # noqa: E402

SMALL = configuration(hidden=32, layers=2, intermediate=48)
PHASE = Phase(until=1.0, layers=2, length=16, batch=2, micro=1)


def test_distilling_from_oneself_costs_nothing() -> None:
    logits = torch.randn(5, 11)
    assert tempered_divergence(logits, logits, 0.7).item() == pytest.approx(0, abs=1e-6)
    model = build(SMALL, seed=0)
    tokens = torch.arange(17)[None]
    mixed = Distillation(model, truth_share=0.1)(model, tokens)
    assert mixed.item() == pytest.approx(0.1 * next_token_loss(model, tokens).item(), rel=1e-4)
    overlapping = Distillation(model, truth_share=0.1, overlap_share=0.5)(model, tokens)
    assert overlapping.item() == pytest.approx(mixed.item(), rel=1e-4)


def test_a_ratio_test_rejects_as_often_as_the_laws_do_not_overlap() -> None:
    wanted = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).log()
    drafted = torch.tensor([[0.5, 0.1, 0.4], [0.8, 0.1, 0.1]]).log()
    assert tempered_rejection(wanted, drafted, 1.0).item() == pytest.approx((0.2 + 0.7) / 2)
    mixed = Distillation(build(SMALL, seed=0), overlap_share=0.25).divergence(wanted, drafted, 1.0)
    apart = tempered_divergence(wanted, drafted, 1.0)
    assert mixed.item() == pytest.approx(0.75 * apart.item() + 0.25 * 0.45)


def test_a_mixed_stream_holds_the_shares_asked_for_from_all_over_each_text() -> None:
    text = np.repeat(np.arange(100, dtype=np.int16), BLOCK)
    others = [np.full(count * BLOCK, -count, dtype=np.int16) for count in (5, 9)]
    stream = mixed(text, [(others[0], 0.25), (others[1], 0.1)], seed=1)
    assert len(stream) == 20 * BLOCK  # the first of the others has no more
    assert (stream == -5).sum() == 5 * BLOCK and (stream == -9).sum() == 2 * BLOCK
    chosen = stream[stream >= 0].reshape(-1, BLOCK)
    assert (chosen == chosen[:, :1]).all() and len(set(chosen[:, 0])) == 13
    assert np.ptp(chosen) > 50


def test_shares_hold_where_the_plain_text_is_the_one_that_runs_out() -> None:
    text, sampled = (np.full(n * BLOCK, n, dtype=np.int16) for n in (7, 50))
    stream = mixed(text, [(sampled, 0.3)], seed=1)
    assert len(stream) == 10 * BLOCK and (stream == 50).sum() == 3 * BLOCK


def test_shares_may_leave_no_plain_text() -> None:
    text, *others = (np.full(10 * BLOCK, n, dtype=np.int16) for n in range(4))
    stream = mixed(text, list(zip(others, (0.7, 0.2, 0.1), strict=True)), seed=1)
    assert [(stream == n).sum() // BLOCK for n in range(4)] == [0, 10, 3, 1]


@pytest.mark.parametrize("shares", [(0.7, 0.5), (1.2,), (-0.1, 0.5), (0.0,)])
def test_shares_that_are_none_are_refused(shares: tuple[float, ...]) -> None:
    text = np.zeros(10 * BLOCK, dtype=np.int16)
    with pytest.raises(ValueError, match="together at most 1"):
        mixed(text, [(text, share) for share in shares], seed=1)


def distilling(folder: Path, **said: Any) -> tuple[Setting, argparse.Namespace]:
    """A run of `models.distill` that begins, and its options."""
    setting = Setting(
        file=folder / "own.pt",
        schedule=Schedule(tokens=1000, phases=(PHASE,)),
        rates=Rates(),
        windows=Windows(np.zeros(BLOCK * GROUP_BLOCKS + 1, dtype=np.int16), seed=0),
        objective=next_token_loss,
        workers=1,
    )
    options = {"model": "drafter", "start_from": None, "seed": 0, **said}
    return setting, argparse.Namespace(**options)


def test_distilling_starts_from_the_run_that_is_named_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped name once trained from nothing."""
    monkeypatch.setattr("models.layout.CACHE_DIR", tmp_path)
    teacher = build(SMALL, seed=1)
    begun = first_state(*distilling(tmp_path), teacher)
    begun.save(tmp_path / "first.pt")
    again = first_state(*distilling(tmp_path, start_from="first", seed=1), teacher)
    for name, tensor in begun.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    with pytest.raises(FileNotFoundError, match="frist"):
        first_state(*distilling(tmp_path, start_from="frist"), teacher)


def test_distilling_refuses_the_state_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.layout.CACHE_DIR", tmp_path)
    teacher = build(SMALL, seed=1)
    setting, options = distilling(tmp_path)
    small = first_state(setting, options, teacher)
    for name in ("other", "own"):  # to start from, and to go on with
        small.save(tmp_path / f"{name}.pt")
        asked = distilling(tmp_path, model="drafter-large", start_from="other")
        with pytest.raises(ValueError, match=f"run '{name}' has a hidden size of 128"):
            first_state(*asked, teacher)
    assert len(set(RUNS_BY_MODEL.values())) == len(DRAFTERS) == len(RUNS_BY_MODEL)
