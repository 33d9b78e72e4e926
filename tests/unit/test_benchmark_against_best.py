"""`fused` against the best single strategy, which is partly the best by luck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks import table
from benchmarks.against_best import JOINED, MIN_PROMPTS, SINGLE, comparisons
from benchmarks.systems import PLAIN


def samples(seconds: Mapping[str, np.ndarray[Any, Any]]) -> list[dict[str, Any]]:
    """Samples of one cell from seconds per token, by method and repetition."""
    cell = {"profile": "bundled", "workload": "chat", "temperature": 0.0}
    return [
        {**cell, "method": method, "file": seed, "seed": seed, "tokens_per_second": 1 / time}
        for method, times in seconds.items()
        for seed, time in enumerate(times)
    ]


def test_halves_correct_the_luck_of_the_best_strategy() -> None:
    random = np.random.default_rng(1)
    records = [
        comparisons(samples({name: random.uniform(0.5, 1.5, 24) for name in (*SINGLE, *JOINED)}))
        for _ in range(50)
    ]
    results = [result for record in records for result in record]
    assert np.mean([result.ratio for result in results]) < 0.92
    assert 0.97 < np.mean([result.apart for result in results]) < 1.03
    assert all(result.least < result.ratio < result.most for result in results)


def test_slower_method_is_slower_in_both_halves() -> None:
    times = np.random.default_rng(1).uniform(0.5, 1.5, 24)
    seconds = {PLAIN: 2 * times, "speculative": 0.8 * times, "fused cold": times}
    (result,) = comparisons(samples(seconds))
    assert (result.method, result.best, result.runs) == ("fused cold", "speculative", 24)
    assert (result.ratio, result.apart) == pytest.approx((0.8, 0.8))
    assert (result.least, result.most) == pytest.approx((0.8, 0.8))


def test_only_complete_repetitions_are_compared() -> None:
    """One that was cut short has a slow `fused` run and nothing to compare it with."""
    seconds = {PLAIN: np.full(5, 1.0), "opt_tree": np.full(4, 0.5), "fused warm": np.full(5, 0.5)}
    seconds["fused warm"][4] = 9.0
    (result,) = comparisons(samples(seconds))
    assert (result.ratio, result.runs) == (1.0, 4)


@pytest.mark.parametrize(
    "methods", [(PLAIN,), ("fused warm",), ("transformers", "fused warm"),
                ("fused: all", "speculative"), ("ouroboros: all", "fused warm")]
)  # fmt: skip
def test_no_comparison_without_both_sides(methods: tuple[str, ...]) -> None:
    """Parts of strategies and other systems do not count as single strategies."""
    assert comparisons(samples(dict.fromkeys(methods, np.ones(9)))) == []


def test_too_few_repetitions_are_not_compared() -> None:
    few = dict.fromkeys((PLAIN, "fused warm"), np.ones(MIN_PROMPTS - 1))
    assert comparisons(samples(few)) == []


def test_page_has_a_table_for_every_profile() -> None:
    recorded = samples({PLAIN: np.full(4, 1.0), "fused warm": np.full(4, 0.5)})
    text = table.markdown([], [], comparisons(recorded))
    assert "**against the best single strategy, the bundled pair as it is**" in text
    assert f"| chat, greedy | fused warm | {PLAIN} | 2.00x | 2.00, 2.00 | 2.00x | 4 |" in text
    assert table.AGAINST_BEST_LEGEND in text
    assert table.AGAINST_BEST_LEGEND not in table.markdown([])
