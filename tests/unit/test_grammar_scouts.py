"""Following drafts with a grammar costs the same after a long output as after a short one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from draftloop.grammar import Grammar
from draftloop.request import SamplingParameters
from draftloop.runtime import grammars
from draftloop.runtime.grammars import Follower, Grammars, Scout
from draftloop.runtime.sampling import Sampler
from tests.support.toy_model import VOCABULARY_SIZE, save_tokenizer

END = 0
A, B, C = (ord(letter) - 32 for letter in "abc")  # tokens of the toy vocabulary
NESTED = Grammar("grammar", 'start: pair*\npair: "a" start "b" | "c"')


@pytest.fixture(scope="module")
def grammar_cache(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Grammars(folder, VOCABULARY_SIZE, [END])


def allowed(follower: Follower, paths: Sequence[Sequence[int]]) -> list[list[bool]]:
    """Which tokens are allowed after each path."""
    kept = follower.applied(torch.zeros(len(paths), VOCABULARY_SIZE), paths)
    return [row.isfinite().tolist() for row in kept]


@pytest.fixture
def created_scouts(monkeypatch: pytest.MonkeyPatch) -> list[Scout]:
    """The scouts that were created, each a copy of the whole output's state."""
    sent: list[Scout] = []

    class Counted(Scout):
        def __init__(self, matcher: LLMatcher, ends: Sequence[int]) -> None:
            super().__init__(matcher, ends)
            sent.append(self)

    monkeypatch.setattr(grammars, "Scout", Counted)
    return sent


@pytest.mark.parametrize("filtered", [False, True])
def test_matcher_is_copied_once_per_output(
    grammar_cache: Grammars, created_scouts: list[Scout], filtered: bool
) -> None:
    """Rounds have branching drafts, of which some paths are accepted."""
    parameters = SamplingParameters(temperature=1.0, top_k=2 if filtered else 0)
    follower = grammar_cache.follow(NESTED)
    sampler = Sampler(parameters, VOCABULARY_SIZE, torch.device("cpu"), follower)
    paths: list[list[int]] = [[], [A], [C], [A, C], [A, A], [C, B], [A, C, B]]
    for number in range(50):
        positions = [4 * number + len(path) for path in paths]
        sampler.best(torch.zeros(len(paths), VOCABULARY_SIZE), positions, paths, 2)
        sampler.choose(torch.zeros(len(paths), VOCABULARY_SIZE), positions, paths)
        sampler.observe_output(([A, C, B], [C], [A, A, B, B])[number % 3])
    assert len(created_scouts) == 1


TOKENS = st.sampled_from([A, B, C, END])
PATHS = st.lists(st.lists(TOKENS, max_size=4), max_size=5)


@given(st.lists(st.tuples(PATHS, st.lists(st.sampled_from([A, C]), max_size=2)), max_size=6))
def test_used_follower_allows_the_same_as_a_fresh_one(
    grammar_cache: Grammars, rounds: list[tuple[list[list[int]], list[int]]]
) -> None:
    """A used follower allows what a fresh one does, also past the end and on impossible paths."""
    follower, output = grammar_cache.follow(NESTED), list[int]()
    for paths, accepted in rounds:
        fresh = grammar_cache.follow(NESTED)
        fresh.observe(output)
        for path, row in zip(paths, allowed(follower, paths), strict=True):
            assert [row] == allowed(fresh, [path])
            assert all(follower.allows(t, path) == fresh.allows(t, path) for t in (A, B, C, END))
        follower.observe(accepted)
        output += accepted


def test_lost_scout_is_replaced(grammar_cache: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exhausted it came on the way, not on the path in question."""
    lost_scouts: list[Scout] = []

    class Lost(Scout):
        def at(self, path: Sequence[int]) -> LLMatcher | None:
            if not lost_scouts:
                lost_scouts.append(self)
                self._matcher.consume_token(END)
                assert self.has_failed
            return super().at(path)

    monkeypatch.setattr(grammars, "Scout", Lost)
    follower = grammar_cache.follow(NESTED)
    follower.observe([A])
    assert follower.allows(B, [C]) and len(lost_scouts) == 1
    follower.observe([C, B])
    assert follower.allows(END)


@pytest.mark.parametrize("text", ['["a"]', '["a", "ab"]'])
@pytest.mark.parametrize("top_k", [0, 4])
def test_draft_beyond_the_end_matches_decoding_without_drafts(
    grammar_cache: Grammars, text: str, top_k: int
) -> None:
    """A request that does not stop there would otherwise get other tokens with drafts."""
    parameters = SamplingParameters(temperature=1.0, seed=3, top_k=top_k)
    logits = torch.randn(6, VOCABULARY_SIZE, generator=torch.Generator().manual_seed(1))

    def sampler() -> Sampler:
        follower = grammar_cache.follow(Grammar("choice", text))
        return Sampler(parameters, VOCABULARY_SIZE, torch.device("cpu"), follower)

    plain_sampler, output = sampler(), list[int]()
    for position, row in enumerate(logits):
        output += plain_sampler.choose(row[None], [position], [[]])
        plain_sampler.observe_output(output[-1:])
    paths = [output[:count] for count in range(len(output))]
    assert sampler().choose(logits, list(range(len(output))), paths) == output
