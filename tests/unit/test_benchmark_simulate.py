"""Virtual time passes as the costs say, and the same way every time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from benchmarks.bundled_pair import bundled_pair
from benchmarks.prompts import completion
from benchmarks.simulate import Run, cells, simulate
from benchmarks.systems import PLAIN
from benchmarks.virtual import Around
from benchmarks.workload import Workload
from draftloop.runtime.model import LanguageModel

AROUND = Around(verify=1.0, draft=0.5, forward=0.25, plan=0.125)
# Whatever its size a verification takes 8 ms, a draft forward half a millisecond.
PROFILE = {
    "verifier": {"forward_ms_by_tokens": {"1": 8.0, "64": 8.0}},
    "drafter": {"forward_ms_by_tokens": {"1": 0.5, "2048": 0.5}},
}
TOKENS = 10

Pair = Mapping[str, LanguageModel]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return bundled_pair(1)


def runs(pair: Pair, method: str) -> list[Run]:
    work = Workload(name="completion", material=completion(2), tokens=TOKENS, temperatures=(0.8,))
    return simulate(pair, PROFILE, method, [dataclasses.replace(work, passes=1)], AROUND)


def test_plain_decoding_takes_a_verification_a_token(pair: Pair) -> None:
    for run in runs(pair, PLAIN):
        assert run.tokens == run.rounds == TOKENS - 1
        assert run.seconds == pytest.approx((8.0 + AROUND.verify) * run.rounds / 1e3)


def test_every_draft_takes_its_forwards_and_its_exchange(pair: Pair) -> None:
    for run in runs(pair, "speculative"):
        least = (8.0 + AROUND.verify) * run.rounds + (0.5 + AROUND.forward) * run.forwards
        most = least + AROUND.draft * run.rounds
        assert least / 1e3 <= run.seconds <= most / 1e3 + 1e-9
        assert run.rounds < run.tokens


@pytest.mark.parametrize("method", ["fused cold", "fused warm", "ouroboros warm"])
def test_the_same_every_time_and_the_text_of_plain_decoding(pair: Pair, method: str) -> None:
    once, again = runs(pair, method), runs(pair, method)
    assert once == again
    (cell,) = cells("some", 0.8, once, runs(pair, PLAIN))
    assert cell.equal and cell.runs == 2 and cell.ratio > 0.8
