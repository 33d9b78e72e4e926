"""Alternating runs: in every repetition, the methods take turns with the same prompt."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.outcome import Outcome
from benchmarks.results import Sample
from benchmarks.systems import METHODS, PLAIN, Profile, System
from benchmarks.workload import Case, Workload

Tick = Callable[[str], None]


@dataclass(slots=True)
class Plan:
    """A workload, the methods that run it, and its progress.

    `done` holds the seeds of repetitions that an interrupted run has already measured.
    """

    workload: Workload
    methods: Sequence[str]
    done: frozenset[int] = frozenset()
    cases_run: int = 0
    seconds: float = 0.0
    waiting: list[tuple[int, list[Case]]] = field(init=False)

    def __post_init__(self) -> None:
        repetitions = enumerate(self.workload.repetitions())
        self.waiting = [(n, cases) for n, cases in repetitions if cases[0].seed not in self.done]

    def fits(self, now: float, deadline: float, last_call: float) -> bool:
        """Whether the next repetition should end before the deadline, judging by earlier ones.

        The first repetition may start until `last_call`: a cell should have few runs rather than
        none.
        """
        if not self.cases_run:
            return now < last_call
        per_case = self.seconds / self.cases_run
        return now + per_case * len(self.waiting[0][1]) <= deadline


def measure(
    profile: Profile,
    systems: Mapping[str, System],
    plans: Sequence[Plan],
    *,
    deadline: float,
    last_call: float,
    tick: Tick,
) -> Iterator[list[Sample]]:
    """Yields samples, one repetition at a time; the workloads take turns.

    So every cell gets its first runs before any gets its last, and if time runs out, all cells have
    about the same number. A workload ends when it is complete, or when its next repetition does not
    fit before `deadline`. Its first repetition may start until `last_call`, the end of the whole
    run.
    """
    open_plans = [plan for plan in plans if plan.waiting]
    while open_plans:
        for plan in list(open_plans):
            if not plan.fits(time.monotonic(), deadline, last_call):
                open_plans.remove(plan)
                continue
            number, cases = plan.waiting.pop(0)
            began = time.monotonic()
            yield _repetition(profile, systems, plan.methods, number, cases, tick)
            plan.seconds += time.monotonic() - began
            plan.cases_run += len(cases)
            if not plan.waiting:
                open_plans.remove(plan)


def _repetition(
    profile: Profile,
    systems: Mapping[str, System],
    methods: Sequence[str],
    number: int,
    cases: Sequence[Case],
    tick: Tick,
) -> list[Sample]:
    """Lets every method continue the same prompts."""
    found: list[Sample] = []
    for case in cases:
        outcomes: dict[str, Outcome] = {}
        for method in method_order(methods, number):
            tick(f"{case.workload}, {case.prompt.file} T={case.temperature:g}, {method}")
            outcomes[method] = systems[METHODS[method].system].run(method, case)
        found += samples(profile.name, case, {name: outcomes[name] for name in methods})
    return found


def method_order(methods: Sequence[str], number: int) -> list[str]:
    """The methods in the order of the `number`th repetition, a random permutation.

    So a machine that slows down or speeds up favours no method, and no method always follows the
    same one, whose after-effects (sessions being freed, full caches) amount to a few per cent.
    """
    return random.Random(number).sample(methods, len(methods))


def samples(profile: str, case: Case, outcomes: Mapping[str, Outcome]) -> list[Sample]:
    """Samples of one repetition, each compared with plain decoding."""
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
