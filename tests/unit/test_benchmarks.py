"""The benchmark's arithmetic: looping, medians, equality, time budget, tables, files."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import demo, table
from benchmarks.looping import is_looping
from benchmarks.machine import describe_machine
from benchmarks.measure import Plan, measure, method_order, samples
from benchmarks.outcome import Outcome, RoundSplit
from benchmarks.prompts import (
    PROMPTS_FILE,
    WORKLOADS,
    Material,
    Missing,
    Prompt,
    held_out_prompts,
)
from benchmarks.results import Results, Row, Sample, row, rows
from benchmarks.settings import read_settings
from benchmarks.systems import METHODS, PLAIN, PROFILES, System
from benchmarks.workload import Case, Workload
from draftloop.config import bundled_model
from draftloop.phrase import PhraseScope
from orchestrator.tokenizer import Tokenizer

PROMPT = Prompt("file.py", "import os", (1, 2, 3))
SPLIT = RoundSplit(draft_forward=1.0, verify_forward=5.0, wire=0.5, rest=0.25, overhead=0.75)


def outcome(
    token_ids: tuple[int, ...] = (1, 2, 3, 4, 5), seconds: float = 2.0, drafted: int = 0
) -> Outcome:
    return Outcome(
        token_ids=token_ids,
        first_tokens=1,
        first_token_s=0.1,
        decode_s=seconds,
        rounds=2,
        drafted=drafted,
        accepted=drafted // 2,
        split=SPLIT,
    )


def case(temperature: float = 0.7) -> Case:
    return Case(prompt=PROMPT, tokens=5, temperature=temperature, seed=1)


def workload(**values: Any) -> Workload:
    material = Material(measured=[PROMPT], warming=[])
    return Workload(name="completion", material=material, tokens=5, **values)


class Scripted:
    """A system that answers at once and records the methods."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def run(self, method: str, case: Case) -> Outcome:
        self.methods.append(method)
        return outcome()


def sample(method: str = PLAIN, ratio: float = 1.0, equal: bool | None = True) -> Sample:
    return Sample(
        profile="bundled",
        workload="completion",
        method=method,
        temperature=0.7,
        file="file.py",
        seed=1,
        outcome=outcome(drafted=4),
        ratio=ratio,
        equal=equal,
    )


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        (list(range(100)), False),
        ([7] * 32, True),
        ([7] * 31, False),
        (list(range(50)) + list(range(16)) * 2, True),
        (list(range(17)) * 2, False),
        (list(range(50)) + [1, 2, 3] * 11, True),
        ([1, 2, 3] * 11 + [9], False),
    ],
)
def test_output_with_a_repeating_tail_is_looping(token_ids: list[int], expected: bool) -> None:
    assert is_looping(token_ids) is expected


def test_first_tokens_are_excluded_from_the_speed() -> None:
    """A first round of several tokens includes the prefill and says nothing about decoding."""
    measured = Outcome.from_steps((1, 2, 3, 4, 5, 6), [(0.5, 3), (1.0, 1), (1.5, 2)])
    assert (measured.first_token_s, measured.decode_s, measured.rounds) == (0.5, 1.0, 2)
    assert measured.tokens_per_second == 3
    assert measured.tokens_per_round == 1.5


def test_speed_of_a_single_token_output_is_zero() -> None:
    measured = Outcome.from_steps((1,), [(0.5, 1)])
    assert (measured.tokens_per_second, measured.tokens_per_round) == (0, 0)


def test_samples_are_compared_with_plain_decoding_of_their_system() -> None:
    different = outcome((9, 9, 9, 9, 9), seconds=1.0)
    outcomes = {PLAIN: outcome(), "speculative": different, "transformers": different}
    sampled = {s.method: s for s in samples("bundled", case(0.7), outcomes)}
    greedy = {s.method: s for s in samples("bundled", case(0.0), outcomes)}
    assert sampled["speculative"].ratio == 2
    assert sampled["speculative"].equal is False
    assert sampled["transformers"].equal is None, "its generator is another one"
    assert greedy["transformers"].equal is True, "it is its own reference"


def test_equality_is_none_without_a_reference() -> None:
    outcomes = {PLAIN: outcome(), "transformers lookup": outcome()}
    assert samples("bundled", case(0.0), outcomes)[1].equal is None


def measured_samples(systems: dict[str, System], plans: list[Plan], seconds: float) -> list[Sample]:
    deadline = time.monotonic() + seconds
    repetitions = measure(
        PROFILES["bundled"],
        systems,
        plans,
        deadline=deadline,
        last_call=deadline,
        tick=lambda _: None,
    )
    return [sample for repetition in repetitions for sample in repetition]


def test_order_of_methods_is_balanced() -> None:
    """No method may always be the first after a pause, or always follow the same one."""
    methods = ["a", "b", "c", "d"]
    orders = [method_order(methods, number) for number in range(400)]
    assert orders == [method_order(methods, number) for number in range(400)]
    assert all(sorted(order) == methods for order in orders)
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    first = Counter(order[0] for order in orders)
    assert min(first.values()) > 70 and max(first.values()) < 130
    assert len(pairs) == 12 and min(pairs.values()) > 70 and max(pairs.values()) < 130


@pytest.mark.parametrize("prompts", [3, 4, 16])
def test_every_prompt_runs_at_every_temperature(prompts: int) -> None:
    material = Material([Prompt(f"{n}.py", "x", (1,)) for n in range(prompts)], [])
    turns = Workload(name="w", material=material, tokens=4, temperatures=(0.8, 0.0), passes=2)
    counts = Counter(
        (case.prompt.file, case.temperature) for cases in turns.repetitions() for case in cases
    )
    assert len(counts) == 2 * prompts
    assert all(count == (2 if temperature else 1) for (_, temperature), count in counts.items())


def test_samples_keep_the_order_of_methods() -> None:
    system = Scripted()
    systems: dict[str, System] = {"draftloop": system}
    workload_of_two = workload(temperatures=(0.7,), passes=2)
    methods = [PLAIN, "speculative"]
    samples = measured_samples(systems, [Plan(workload_of_two, methods)], 60)
    assert system.methods == [*method_order(methods, 0), *method_order(methods, 1)]
    assert [s.method for s in samples] == methods * 2


def test_row_has_medians_and_shares() -> None:
    summed = row([sample(ratio=1.0), sample(ratio=5.0, equal=False), sample(ratio=2.0, equal=None)])
    assert (summed.runs, summed.ratio, summed.equality) == (3, 2.0, 0.5)
    assert summed.acceptance == 0.5
    assert summed.round_ms == SPLIT


def test_results_file_round_trip(tmp_path: Path) -> None:
    results = Results(
        settings={"tokens": 5},
        machine=describe_machine(),
        profiles={},
        rows=rows([sample(), sample("speculative", 1.5)]),
        samples=[sample().as_json()],
    )
    results.write(tmp_path / "new" / "bench.json")
    assert Results.read(tmp_path / "new" / "bench.json") == results
    assert json.loads((tmp_path / "new" / "bench.json").read_text())["samples"][0]["tokens"] == 5


def test_tables_mention_cost_inflation_and_every_method() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    all_rows: list[Row] = [row([sample(name)]) for name in METHODS]
    table.show(console, all_rows)
    text = console.export_text()
    assert all(name in text for name in METHODS)
    assert "looping" in text
    assert all("cost-inflated" in p.title for p in PROFILES.values() if p.inflate)
    assert table.markdown(all_rows).count("| speculative |") == 4


def test_plain_decoding_is_always_measured() -> None:
    settings = read_settings(["--strategies", "transformers,speculative"])
    assert settings.strategies == [PLAIN, "speculative", "transformers"]


def test_unknown_profile_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--profiles", "70B"])
    assert "must be of bundled, 300M, 1B" in capsys.readouterr().err


def test_held_out_prompts_are_tokenized() -> None:
    (prompt,) = held_out_prompts(1)
    assert prompt.file.endswith(".py")
    assert prompt.token_ids
    with pytest.raises(ValueError, match="must be from 1 to"):
        held_out_prompts(0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_warm_pools_exclude_the_measured_prompts(name: str) -> None:
    """A warm pool that has seen the answer would measure nothing."""
    try:
        material = WORKLOADS[name](6)
    except Missing as missing:
        pytest.skip(str(missing))
    assert len(material.measured) == 6 and material.warming
    measured = {prompt.token_ids for prompt in material.measured}
    assert len(measured) == 6
    assert measured.isdisjoint(prompt.token_ids for prompt in material.warming)


@pytest.mark.parametrize("name", ["completion", "agent"])
def test_continued_prompts_end_at_a_token_boundary(name: str) -> None:
    """A line end is one token with the indentation that follows."""
    tokenizer = Tokenizer(bundled_model("verifier"))
    lines = PROMPTS_FILE.read_text("utf-8").splitlines()
    continued = {
        entry["prompt"].rstrip(): entry["prompt"] + entry["reference"]
        for entry in map(json.loads, lines)
    }
    for prompt in WORKLOADS[name](12).measured:
        continued_ids = tuple(tokenizer.encode(continued[prompt.text]))
        assert continued_ids[: len(prompt.token_ids)] == prompt.token_ids


def test_measured_methods_do_not_share_phrases() -> None:
    """Otherwise the first method would help the second."""
    speculations = [
        method.speculation for method in METHODS.values() if method.system == "draftloop"
    ]
    assert speculations and all(chosen.phrases is not PhraseScope.SHARED for chosen in speculations)


def test_demo_reports_where_tokens_differ() -> None:
    identical = demo.Comparison(PROMPT, outcome(), outcome())
    different = demo.Comparison(PROMPT, outcome((1, 2, 9, 4, 5)), outcome())
    assert identical.identical and "identical" in demo._same(identical)
    assert not different.identical and "from token 2" in demo._same(different)
