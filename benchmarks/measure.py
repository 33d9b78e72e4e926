"""Alternating runs: in every repetition each method continues the same prompt, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.outcome import Outcome
from benchmarks.results import Sample
from benchmarks.systems import METHODS, PLAIN, Profile, System
from benchmarks.workload import Case, Workload

Tick = Callable[[str], None]


def measure(
    profile: Profile,
    systems: Mapping[str, System],
    methods: Sequence[str],
    workload: Workload,
    *,
    deadline: float,
    tick: Tick,
) -> Iterator[Sample]:
    """Samples until the workload is through or no further repetition fits before `deadline`.

    The methods take turns in an order that shifts by one each repetition, so that a machine that
    slows down or speeds up favours none. One repetition always runs.
    """
    for method in methods:
        tick(f"warming up {method}")
        systems[METHODS[method].system].run(method, workload.warm_up())
    began = time.monotonic()
    for number, cases in enumerate(workload.repetitions()):
        if number and _too_late(began, number, deadline):
            return
        shift = number % len(methods)
        for case in cases:
            turns = [*methods[shift:], *methods[:shift]]
            outcomes: dict[str, Outcome] = {}
            for method in turns:
                tick(f"{case.prompt.file} T={case.temperature:g}, {method}")
                outcomes[method] = systems[METHODS[method].system].run(method, case)
            yield from samples(profile.name, case, {name: outcomes[name] for name in methods})


def _too_late(began: float, repetitions: int, deadline: float) -> bool:
    now = time.monotonic()
    return now + (now - began) / repetitions > deadline


def samples(profile: str, case: Case, outcomes: Mapping[str, Outcome]) -> list[Sample]:
    """One repetition's outcomes, each held against its plain decoding."""
    base = outcomes[PLAIN].tokens_per_second
    return [
        Sample(
            profile=profile,
            workload=case.workload,
            method=name,
            temperature=case.temperature,
            file=case.prompt.file,
            seed=case.seed,
            outcome=outcome,
            ratio=outcome.tokens_per_second / base,
            equal=_equal(name, case, outcomes),
        )
        for name, outcome in outcomes.items()
    ]


def _equal(name: str, case: Case, outcomes: Mapping[str, Outcome]) -> bool | None:
    method = METHODS[name]
    reference = outcomes.get(method.reference)
    if reference is None or (case.temperature and not method.compares_samples):
        return None
    return outcomes[name].token_ids == reference.token_ids
