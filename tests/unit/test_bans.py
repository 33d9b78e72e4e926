"""Banned tokens: the distribution without them, against the definition, on every path."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.bans import Bans
from draftloop.errors import InvalidInput
from draftloop.request import SamplingParameters
from draftloop.runtime.sampling import Sampler

CPU = torch.device("cpu")
VOCABULARY = 6
LOGITS = torch.arange(VOCABULARY, dtype=torch.float32).repeat(2, 1)
tokens = st.integers(0, VOCABULARY - 1)
texts = st.lists(tokens, max_size=6)


def new_sampler(bans: Bans) -> Sampler:
    return Sampler(SamplingParameters(bans=bans), VOCABULARY, CPU)


def tokens_not_banned(bans: Bans, output: list[int]) -> set[int]:
    """The tokens that may follow an output, by the definition."""
    banned = {
        token
        for token in range(VOCABULARY)
        for sequence in bans.sequences
        if tuple([*output, token][-len(sequence) :]) == sequence
    }
    early = set(bans.ends) if len(output) < bans.min_tokens else set()
    return (set(bans.allowed) or set(range(VOCABULARY))) - banned - early


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        Bans,
        allowed=st.lists(tokens, max_size=4).map(tuple),
        sequences=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4).map(
            tuple
        ),
        min_tokens=st.integers(0, 5),
        ends=st.lists(tokens, max_size=2).map(tuple),
    ),
    texts,
    st.lists(texts, min_size=1, max_size=4),
)
def test_allowed_tokens_follow_the_definition(
    bans: Bans, output: list[int], paths: list[list[int]]
) -> None:
    """The output may come token by token or at once; the prompt does not count."""
    token_by_token, at_once = new_sampler(bans), new_sampler(bans)
    for token in output:
        token_by_token.observe_output([token])
    at_once.observe_prompt([0, 1, 2])
    at_once.observe_output(output)
    logits = LOGITS[:1].repeat(len(paths), 1)
    for sampler in (token_by_token, at_once):
        for path, row in zip(paths, sampler.shape(logits, paths), strict=True):
            assert set(row.isfinite().nonzero().flatten().tolist()) == tokens_not_banned(
                bans, [*output, *path]
            )


def test_sampler_is_plain_again_after_min_tokens() -> None:
    """Rounds after `min_tokens` take the faster path."""
    temporary = new_sampler(Bans(min_tokens=2, ends=(5,)))
    assert temporary.choose(LOGITS, [0, 1], [[], [1, 2]]) == [4, 5]
    temporary.observe_output([4])
    assert not temporary.is_plain and temporary.depends_on_path
    temporary.observe_output([4])
    assert temporary.is_plain and temporary.choose(LOGITS[:1], [2], [[]]) == [5]
    for permanent in (Bans(allowed=(1,)), Bans(sequences=((1,),)), Bans(sequences=((1, 2),))):
        always = new_sampler(permanent)
        always.observe_output([3] * 9)
        assert not always.is_plain and not always.is_plain_except_grammar


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_filters_and_noise_apply_to_allowed_tokens_only(temperature: float) -> None:
    """Top-k counts allowed tokens only, and a bias does not bring back a banned one."""
    parameters = SamplingParameters(
        temperature=temperature, top_k=2, logit_bias=((5, 100.0),), bans=Bans(allowed=(0, 1, 2))
    )
    chosen = {
        Sampler(replace(parameters, seed=seed), VOCABULARY, CPU).choose(LOGITS[:1], [seed], [[]])[0]
        for seed in range(40)
    }
    assert chosen == ({2} if temperature == 0 else {1, 2})


@pytest.mark.parametrize(
    ("bans", "field"),
    [
        (Bans(allowed=(6,)), "allowed_token_ids"),
        (Bans(sequences=((1, -1),)), "bad_words"),
        (Bans(sequences=((),)), "bad_words"),
        (Bans(ends=(7,)), "ends"),
        (Bans(allowed=(1, 2), sequences=((1,), (0, 2))), "allowed_token_ids"),
        (Bans(allowed=(1,), min_tokens=1, ends=(1,)), "allowed_token_ids"),
        (Bans(sequences=tuple((token,) for token in range(VOCABULARY))), "bad_words"),
    ],
)
def test_invalid_bans_are_refused_by_field(bans: Bans, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        SamplingParameters(bans=bans).validate(VOCABULARY)
    assert refused.value.field == field


def test_ends_without_min_tokens_ban_nothing() -> None:
    bans = Bans(allowed=(1,), ends=(1,))
    SamplingParameters(bans=bans).validate(VOCABULARY)
    assert not Bans(ends=(1,)).any and not Bans(min_tokens=3).any
