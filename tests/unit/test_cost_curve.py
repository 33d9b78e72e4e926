"""Cost curves: what is measured, how it is corrected, and how it is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import GPT2Config

from draftloop.cost_line import cost_line
from draftloop.model_info import CostPoint
from draftloop.runtime import cost_measurement
from draftloop.runtime.cost_curve import MAX_STEPS, CostCurve, isotonic_regression
from draftloop.runtime.forward import Forward
from draftloop.runtime.model import LanguageModel
from orchestrator.costs import VerifyCost
from tests.support.toy_model import llama_config, load_model, save_model

MS = 1_000_000
MEASURED = (
    CostPoint(1, 10 * MS, 128),
    CostPoint(8, 12 * MS, 128),
    CostPoint(16, 20 * MS, 128),
    CostPoint(32, 40 * MS, 128),
    CostPoint(1, 20 * MS, 1024),
    CostPoint(8, 24 * MS, 1024),
    CostPoint(1, 11 * MS, 128, 4),
    CostPoint(8, 44 * MS, 128, 4),
)
Place = tuple[int, int, int]


def places(curve: tuple[CostPoint, ...]) -> list[Place]:
    return [(point.batch, point.context, point.tokens) for point in curve]


def milliseconds(curve: CostCurve) -> dict[Place, float]:
    times = [point.forward_ns / MS for point in curve.points()]
    return dict(zip(places(curve.points()), times, strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A model with room for more than 1024 tokens."""
    config = llama_config(max_position_embeddings=1100)
    return load_model(save_model(tmp_path_factory.mktemp("long"), config))


@pytest.fixture
def unlimited_measurement_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures everything, even on a busy machine."""
    monkeypatch.setattr(cost_measurement, "TOTAL_NS", 10**12)


@pytest.mark.usefixtures("unlimited_measurement_time")
def test_measured_grid_covers_the_models_limits(model: LanguageModel) -> None:
    model.measure_costs()
    tokens_alone = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 17, 24, 32, 64, 128)
    expected = [(1, 128, tokens) for tokens in tokens_alone]
    expected += [(1, context, tokens) for context in (512, 1024) for tokens in (1, 8)]
    expected += [(batch, 128, tokens) for batch in (2, 4) for tokens in (1, 8)]
    assert places(model.cost_curve) == expected
    assert all(point.forward_ns > 0 for point in model.cost_curve)
    assert model.cache.free_slots == 4
    assert model.forward_seconds > 0


@pytest.mark.usefixtures("unlimited_measurement_time")
def test_grid_is_limited_by_context_and_sessions(tmp_path: Path) -> None:
    short = load_model(save_model(tmp_path), context_length=8, max_draft_nodes=4, max_sessions=3)
    short.measure_costs()
    expected = [(1, 4, tokens) for tokens in (1, 2, 3, 4)] + [(2, 4, 1)]
    assert places(short.cost_curve) == expected


def test_measurement_stays_within_the_models_positions(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=96, n_positions=40, n_embd=32, n_layer=2, n_head=4)
    model = load_model(save_model(tmp_path, config))
    model.measure_costs()
    assert max(point.context + point.tokens for point in model.cost_curve) == 37


def test_slow_model_is_measured_at_few_points(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    forward = model.forward

    def counted(forwards: list[Forward]) -> list[Tensor]:
        calls.append(len(forwards))
        return forward(forwards)

    monkeypatch.setattr(cost_measurement, "TOTAL_NS", -1)
    monkeypatch.setattr(cost_measurement, "POINT_NS", 0)
    monkeypatch.setattr(model, "forward", counted)
    points = cost_measurement.measure(model)
    assert places(points) == [(1, 128, 1), (1, 128, 8), (1, 128, 32)]
    warming = 2 + len(points)  # one for prefill, one for decoding, and the first run of every point
    assert calls == [1] * (warming + len(points) * cost_measurement.MIN_REPEATS)


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ([], [], []),
        ([1.0, 2.0, 2.0], [1, 1, 1], [1.0, 2.0, 2.0]),
        ([1.0, 9.0, 3.0, 12.0], [1, 1, 1, 1], [1.0, 6.0, 6.0, 12.0]),
        ([1.0, 9.0, 3.0, 12.0], [1, 5, 1, 1], [1.0, 8.0, 8.0, 12.0]),
        ([3.0, 2.0, 1.0], [1, 1, 1], [2.0, 2.0, 2.0]),
    ],
)
def test_never_falling_is_the_nearest_monotone_fit(
    values: list[float], weights: list[float], expected: list[float]
) -> None:
    assert isotonic_regression(values, weights) == expected


def test_inflated_cost_decays_for_sizes_that_no_longer_run() -> None:
    """Inflated costs may be the very reason why those sizes do not run."""
    curve = CostCurve(MEASURED)
    for _ in range(100):
        curve.observe(1, 0, 1, 80 * MS)
        curve.observe(8, 0, 1, 96 * MS)
        curve.observe(8, 0, 1, 96 * MS)
    for _ in range(100):
        curve.observe(1, 0, 1, 10 * MS)
    assert milliseconds(curve)[1, 128, 8] > 20  # not at once
    for _ in range(20_000):
        curve.observe(1, 0, 1, 10 * MS)
    assert milliseconds(curve)[1, 128, 8] == pytest.approx(12, rel=0.05)


def test_cost_never_decreases_with_more_tokens() -> None:
    times = (1, 9, 3, 12)
    curve = CostCurve(tuple(CostPoint(1 << at, time * MS) for at, time in enumerate(times)))
    assert list(milliseconds(curve).values()) == [1, 6, 6, 12]
    for _ in range(150):
        curve.observe(4, 0, 1, 3 * MS)
        curve.observe(1, 0, 1, 8 * MS)
    costs = [point.forward_ns for point in curve.points()]
    assert costs == sorted(costs)


@pytest.mark.parametrize(("rows", "taken_ms", "level"), [
    (2, 10, (12 * 21 + 6 * 11) / 32),  # a third of the way: 20 and 10 forwards, and the start's
    (1, 12, (12 * 31 + 6 * 1) / 32),
    (4, 6, (12 * 1 + 6 * 31) / 32),
])  # fmt: skip
def test_points_are_weighted_by_their_observations(rows: int, taken_ms: int, level: float) -> None:
    """A larger forward seemed to take less time; what was seen more often is trusted more."""
    curve = CostCurve((CostPoint(1, 12 * MS), CostPoint(4, 6 * MS)))
    for _ in range(30):
        curve.observe(rows, 0, 1, taken_ms * MS)  # as expected: nothing is corrected
    assert list(milliseconds(curve).values()) == pytest.approx([level, level], rel=1e-5)


def test_corrections_converge_to_observed_times() -> None:
    curve = CostCurve(MEASURED)
    for _ in range(150):
        curve.observe(1, 100, 1, 30 * MS)
        curve.observe(12, 100, 1, 36 * MS)
    assert curve.forward_seconds == pytest.approx(0.030, rel=0.02)
    assert cost_line(curve.points()).nanoseconds(12) == pytest.approx(36 * MS, rel=0.05)


def test_slowdown_also_raises_unobserved_points() -> None:
    curve = CostCurve(MEASURED)
    for _ in range(150):
        curve.observe(1, 128, 1, 20 * MS)
    corrected = milliseconds(curve)
    assert corrected[1, 128, 1] == pytest.approx(20, rel=0.02)
    assert corrected[1, 1024, 8] == pytest.approx(24 * 2**0.5, rel=0.02)
    assert curve.points()[0].forward_ns == pytest.approx(curve.forward_seconds * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "context", "batch", "corrected"),
    [(1, 1000, 1, (1, 1024, 1)), (32, 200, 4, (4, 128, 8)), (32, 5000, 16, (4, 128, 8))],
)
def test_nearest_context_and_batch_are_corrected(
    rows: int, context: int, batch: int, corrected: Place
) -> None:
    curve = CostCurve(MEASURED)
    before = milliseconds(curve)
    for _ in range(150):
        curve.observe(rows, context, batch, 80 * MS)
    after = milliseconds(curve)
    assert after[corrected] == pytest.approx(80, rel=0.02)
    ratios = {place: after[place] / before[place] for place in after}
    assert max(ratios.values()) == ratios[corrected]


def test_remembered_contexts_are_bounded() -> None:
    curve = CostCurve(MEASURED)
    for context in range(0, 1_000_000, 500):
        curve.observe(1, context, 1, 10 * MS)
    assert len(curve._spots) <= MAX_STEPS + 1


def test_single_late_forward_hardly_counts() -> None:
    curve = CostCurve(MEASURED)
    curve.observe(8, 128, 1, 12_000 * MS)
    assert milliseconds(curve)[1, 128, 8] == pytest.approx(12, rel=0.06)
    for _ in range(50):
        curve.observe(8, 128, 1, 12 * MS)
    assert milliseconds(curve)[1, 128, 8] == pytest.approx(12, rel=0.01)


def test_prefills_and_unmeasured_curves_are_not_corrected() -> None:
    curve = CostCurve(MEASURED)
    for rows, batch in ((65, 1), (256, 1), (2048, 8)):
        curve.observe(rows, 0, batch, 900 * MS)
    assert curve.points() == MEASURED
    empty = CostCurve()
    empty.observe(1, 0, 1, MS)
    assert empty.points() == () and empty.forward_seconds == 0.0


def test_model_forwards_correct_the_curve(model: LanguageModel) -> None:
    measured = 60_000 * MS  # far slower than this model
    model.costs = CostCurve((CostPoint(1, measured, 128),))
    slot = model.acquire()
    for _ in range(20):
        model.forward([Forward(model, slot, [1])])
    model.cache.release(slot)
    assert model.forward_seconds < measured / 1e9 / 2
    assert model.info().cost_curve[0].forward_ns < measured / 2


def test_unmeasured_part_of_a_line_follows_the_most_complete_one() -> None:
    assert cost_line(MEASURED).rows == (1, 8, 16, 32)
    long = cost_line(MEASURED, context=900)
    assert (long.rows, long.points) == ((1, 8, 16, 32), (4, 5, 2, 3))
    assert [time / MS for time in long.times] == [20, 24, 40, 80]
    assert cost_line(MEASURED, 1024, batch=3).rows == (4, 32)
    assert cost_line(()).nanoseconds(5) == 1.0


def test_nearest_batch_is_chosen_by_ratio() -> None:
    curve = (CostPoint(1, MS, 128, 1), CostPoint(1, MS, 128, 8))
    assert [cost_line(curve, 128, batch).batch for batch in (1, 2, 3, 8, 64)] == [1, 1, 8, 8, 8]


def test_most_complete_line_is_used_without_a_context() -> None:
    curve = (CostPoint(1, MS, 128), CostPoint(1, 2 * MS, 1024), CostPoint(8, 3 * MS, 1024))
    assert cost_line(curve).context == 1024 and cost_line(curve, 0).context == 128


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [10, 12, 16, 80]),
        ({"context": 100}, [10, 12, 16, 80]),
        ({"context": 2000}, [20, 24, 32, 160]),
    ],
)
def test_verify_cost_uses_the_nearest_context(
    options: dict[str, Any], expected: list[float]
) -> None:
    cost = VerifyCost(MEASURED, **options)
    assert [cost.nanoseconds(nodes) / MS for nodes in (0, 7, 11, 63)] == expected


def test_verify_cost_follows_the_services_curve() -> None:
    cost = VerifyCost(MEASURED)
    assert [cost.nanoseconds(nodes) / MS for nodes in (0, 11)] == [10, 16]
    before = cost.times(11)
    cost.follow(tuple(replace(point, forward_ns=3 * point.forward_ns) for point in MEASURED))
    assert [cost.nanoseconds(nodes) / MS for nodes in (0, 11)] == [30, 48]
    assert cost.times(11) == pytest.approx([3 * time for time in before])
    cost.follow(())
    assert cost.nanoseconds(0) == 30 * MS
