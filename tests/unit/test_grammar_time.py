"""Limits on the time that a grammar takes while it is followed, which no trial can foresee."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.runtime import grammars
from draftloop.runtime.grammar_time import AT_ONCE_S, EACH_S, GrammarTime
from draftloop.runtime.grammars import Grammars
from tests.support.toy_model import VOCABULARY_SIZE, save_tokenizer

GRAMMAR = Grammar("regex", "a+")
A = ord("a") - 32  # token of the toy vocabulary
TOO_SLOW = "grammar.regex: must be a grammar that can be followed .following it takes more than 10"


class Clock:
    """A clock that advances by a step at every reading."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def spend_tokens(time: GrammarTime, tokens: int) -> None:
    for _ in range(tokens):
        with time.spent_on(GRAMMAR):
            pass


def test_slow_grammar_is_refused_eventually_and_moderate_never() -> None:
    clock = Clock()
    time = GrammarTime(clock)
    clock.step = 0.9 * EACH_S
    spend_tokens(time, 10_000)
    clock.step = AT_ONCE_S / 4
    spend_tokens(time, 4)
    with pytest.raises(InvalidInput, match=TOO_SLOW):
        spend_tokens(time, 1)


def test_saved_time_is_capped_at_the_initial_allowance() -> None:
    clock = Clock()
    time = GrammarTime(clock)
    spend_tokens(time, 10_000)
    clock.step = 1.1 * AT_ONCE_S
    with pytest.raises(InvalidInput, match=TOO_SLOW):
        spend_tokens(time, 1)


def test_output_and_its_lookahead_share_one_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another output of the same grammar has its own time limit."""
    save_tokenizer(tmp_path)
    grammar_cache = Grammars(tmp_path, VOCABULARY_SIZE, [0])
    clock = Clock()
    monkeypatch.setattr(grammars, "GrammarTime", lambda: GrammarTime(clock))
    follower, other_follower = grammar_cache.follow(GRAMMAR), grammar_cache.follow(GRAMMAR)
    clock.step = 0.6 * AT_ONCE_S
    follower.applied(torch.zeros(1, VOCABULARY_SIZE), [[]])
    with pytest.raises(InvalidInput, match=TOO_SLOW):
        follower.observe([A])
    other_follower.observe([A])
    with pytest.raises(InvalidInput, match=TOO_SLOW):
        other_follower.applied(torch.zeros(1, VOCABULARY_SIZE), [[A]])
