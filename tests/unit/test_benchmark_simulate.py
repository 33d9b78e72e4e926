"""Virtual time follows the given costs, and is the same in every run."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bundled_pair import bundled_pair
from benchmarks.prompts import completion
from benchmarks.recorded_costs import Curve, curves_of, part_of, read_profiles
from benchmarks.simulate import Run, cells, main, read, simulate
from benchmarks.systems import PLAIN, PROFILES
from benchmarks.virtual import Around, Noise
from benchmarks.workload import Workload
from draftloop.config import bundled_model
from draftloop.errors import InvalidInput
from draftloop.model_info import CostPoint, model_fingerprint
from draftloop.runtime.model import LanguageModel

AROUND = Around(verify=1.0, draft=0.5, forward=0.25, plan=0.125)
# A verification takes 8 ms whatever its size, and a draft forward half a millisecond.
CURVES = {
    "verifier": (CostPoint(1, 8_000_000), CostPoint(64, 8_000_000)),
    "drafter": (CostPoint(1, 500_000), CostPoint(2048, 500_000)),
}
TOKENS = 10

Pair = Mapping[str, LanguageModel]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return bundled_pair(1)


def simulated_runs(
    pair: Pair, method: str, curves: Mapping[str, Curve] = CURVES, noise: float = 0.0
) -> list[Run]:
    work = Workload(name="completion", material=completion(2), tokens=TOKENS, temperatures=(0.8,))
    workloads = [dataclasses.replace(work, passes=1)]
    return simulate(pair, curves, method, workloads, AROUND, noise=noise)


def test_plain_decoding_costs_one_verification_per_token(pair: Pair) -> None:
    for run in simulated_runs(pair, PLAIN):
        assert run.tokens == run.rounds == TOKENS - 1
        assert run.seconds == pytest.approx((8.0 + AROUND.verify) * run.rounds / 1e3)


def test_draft_costs_its_forwards_and_its_exchange(pair: Pair) -> None:
    for run in simulated_runs(pair, "speculative"):
        lower_bound = (8.0 + AROUND.verify) * run.rounds + (0.5 + AROUND.forward) * run.forwards
        upper_bound = lower_bound + AROUND.draft * run.rounds
        assert lower_bound / 1e3 <= run.seconds <= upper_bound / 1e3 + 1e-9
        assert run.rounds < run.tokens


def test_noise_has_the_spread_asked_for_and_a_slow_part() -> None:
    noise = Noise(0.2)
    logarithms = [math.log(noise.next_factor()) for _ in range(20_000)]
    assert statistics.pstdev(logarithms) == pytest.approx(0.2, rel=0.1)
    assert statistics.correlation(logarithms[1:], logarithms[:-1]) == pytest.approx(0.5, abs=0.05)


def test_speeds_are_those_without_the_noise(pair: Pair) -> None:
    quiet, noisy = simulated_runs(pair, PLAIN), simulated_runs(pair, PLAIN, noise=0.3)
    assert [run.token_ids for run in noisy] == [run.token_ids for run in quiet]
    assert [run.seconds for run in noisy] == pytest.approx([run.seconds for run in quiet])
    assert pair["verifier"].costs.points() != CURVES["verifier"]  # but the services measure it


@pytest.mark.parametrize("method", ["fused cold", "fused warm", "ouroboros warm"])
def test_simulation_is_deterministic_and_lossless(pair: Pair, method: str) -> None:
    first, second = simulated_runs(pair, method), simulated_runs(pair, method)
    assert first == second
    (cell,) = cells("some", 0.8, first, simulated_runs(pair, PLAIN))
    assert cell.equal and cell.runs == 2 and cell.ratio > 0.8


@pytest.mark.parametrize("method", ["fused cold", "cascade"])
def test_smaller_draft_model_is_used(method: str) -> None:
    pair = bundled_pair(1, "drafter-large", ("drafter",))
    curves = {**CURVES, "smaller 0": CURVES["drafter"]}
    rows = dict.fromkeys(pair, 0)

    def counted(role: str) -> None:
        forward = pair[role].forward

        def counting_forward(*forwards: Any) -> Any:
            rows[role] += 1
            return forward(*forwards)

        pair[role].forward = counting_forward  # type: ignore[method-assign, assignment]

    for role in pair:
        counted(role)
    (cell,) = cells(
        "some", 0.8, simulated_runs(pair, method, curves), simulated_runs(pair, PLAIN, curves)
    )
    assert cell.equal and all(rows.values())


def test_cost_curves_are_found_in_other_pairs() -> None:
    def pair(target: float, draft: float) -> dict[str, object]:
        return {
            "verifier": {"forward_ms_by_tokens": {"1": target}},
            "drafter": {"forward_ms_by_tokens": {"1": draft}},
        }

    recorded = {"1B-large": pair(40, 0.4), "bundled": pair(0.5, 0.1), "300M": pair(15, 0.06)}
    curves = curves_of(PROFILES["300M-large"], recorded)
    assert curves["verifier"] == (CostPoint(1, 15_000_000),)
    assert curves["drafter"] == (CostPoint(1, 400_000),)
    assert curves["smaller 0"] == (CostPoint(1, 100_000),)
    # its own costs if it was measured itself
    assert curves_of(PROFILES["300M"], recorded)["drafter"] == (CostPoint(1, 60_000),)
    with pytest.raises(InvalidInput, match="profiles.*drafter's costs.*300M-30M"):
        curves_of(PROFILES["300M-30M"], recorded)
    assert part_of(curves["verifier"], 0.1) == (CostPoint(1, 1_500_000),)


def test_first_result_of_a_profile_wins(tmp_path: Path) -> None:
    for name, profiles in (("one", {"300M": 1}), ("two", {"300M": 2, "1B": 3})):
        (tmp_path / name).write_text(json.dumps({"profiles": profiles}))
    assert read_profiles([f"{tmp_path}/one", f"{tmp_path}/two"]) == {"300M": 1, "1B": 3}


def test_figures_name_their_models_and_commit(tmp_path: Path) -> None:
    """The profiles of the costs name the models with which those were measured."""
    out = tmp_path / "figures.json"
    small = "--workloads completion --prompts 1 --tokens 4 --strategies prompt_lookup"
    assert main([*small.split(), "--profiles", "bundled", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    names = ("verifier", "drafter")
    assert figures["models"] == {name: model_fingerprint(bundled_model(name)) for name in names}
    assert figures["commit"] and figures["cells"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--draft-share 1.5", "must be a number from 0 to 1; got '1.5'"),
        ("--draft-share nan", "must be a number from 0 to 1; got 'nan'"),
        ("--verify-ms -1", "must be a number from 0 to 10000; got '-1'"),
        ("--profiles 2T", "invalid choice: '2T'"),
    ],
)
def test_invalid_simulation_settings_are_refused(
    options: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        read(options.split())
    assert rule in capsys.readouterr().err
