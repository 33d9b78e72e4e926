"""Figures of several choices are summed completely, and HTTP reports the same as gRPC."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

from draftloop.tree import Draft, DraftEnd, DraftTree, TokenSource, Verdict
from orchestrator.figures import SpeculationFigures, Timings
from orchestrator.gateway.figures import metrics

PHRASE, MODEL = TokenSource.PHRASE, TokenSource.DRAFT_MODEL
ONE = SpeculationFigures(
    rounds=1, draft_tokens=2, accepted_tokens=3, round_tokens=4, draft_forwards=5,
    fallback_rounds=6, phrase_rounds=7, reopened_sessions=8, accepted_per_position=[9],
    drafted_by_source=Counter({PHRASE: 10}), accepted_by_source=Counter({PHRASE: 11}),
    proposed_by_source=Counter({PHRASE: 12, MODEL: 13}),
    expected_by_source=defaultdict(float, {PHRASE: 0.5}), ends=Counter({DraftEnd.TEXT: 14}),
)  # fmt: skip
OTHER = dataclasses.replace(
    ONE, accepted_per_position=[20, 30], drafted_by_source=Counter({MODEL: 40}),
    expected_by_source=defaultdict(float, {PHRASE: 0.25, MODEL: 1.5}),
)  # fmt: skip


def test_every_figure_is_summed() -> None:
    """Proposed nodes and expected acceptances of several choices used to be left out."""
    original, total = copy.deepcopy(ONE), ONE + OTHER
    assert total == SpeculationFigures(
        rounds=2, draft_tokens=4, accepted_tokens=6, round_tokens=8, draft_forwards=10,
        fallback_rounds=12, phrase_rounds=14, reopened_sessions=16, accepted_per_position=[29, 30],
        drafted_by_source=Counter({PHRASE: 10, MODEL: 40}),
        accepted_by_source=Counter({PHRASE: 22}),
        proposed_by_source=Counter({PHRASE: 24, MODEL: 26}),
        expected_by_source=defaultdict(float, {PHRASE: 0.75, MODEL: 1.5}),
        ends=Counter({DraftEnd.TEXT: 28}),
    )  # fmt: skip
    assert original == ONE
    assert SpeculationFigures() + ONE == ONE


def test_tokens_accepted_after_the_end_of_the_text_are_not_counted() -> None:
    """A stop text may end the output in the middle of an accepted path."""
    figures = SpeculationFigures()
    tree = DraftTree((5, 6, 7), (-1, 0, 1), (0.5,) * 3, (PHRASE, MODEL, MODEL))
    verdict = Verdict((0, 1, 2), (5, 6, 7, 8), 5, (6, 7, 8))
    figures.observe(Draft(tree=tree, committed_length=1), verdict, emitted=2)
    assert (figures.draft_tokens, figures.accepted_tokens, figures.round_tokens) == (3, 2, 2)
    assert figures.accepted_per_position == [1, 1]
    assert figures.accepted_by_source == {PHRASE: 1, MODEL: 1}


def generation(figures: SpeculationFigures, max_draft_tokens: int | None = None) -> Any:
    """A generation with only what HTTP reports."""
    request = SimpleNamespace(
        strategy="fused",
        speculation=SimpleNamespace(max_draft_tokens=max_draft_tokens),
        sampling=SimpleNamespace(seed=1),
    )
    return SimpleNamespace(
        figures=figures, request=request, timings=Timings(), output=[5], output_length=1
    )


def test_http_metrics_report_proposed_and_expected_tokens_by_source() -> None:
    figures = SpeculationFigures()
    tree = DraftTree((5, 6), (-1, 0), (0.5, 0.5), (PHRASE, PHRASE))
    draft = Draft(tree=tree, committed_length=1, proposed={PHRASE: 3, MODEL: 4})
    figures.observe(draft, Verdict((0,), (5, 7), 5, (7, 8)), emitted=2)
    choice = generation(figures)
    assert metrics([choice, choice], 64)["speculative_decoding"]["sources"] == {
        "draft_model": {
            "num_proposed_tokens": 8, "num_draft_tokens": 0, "num_accepted_draft_tokens": 0,
            "num_expected_tokens": 0.0,
        },
        "phrase": {
            "num_proposed_tokens": 6, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2,
            "num_expected_tokens": 1.5,
        },
    }  # fmt: skip


def test_acceptance_histogram_has_an_entry_per_draft_length() -> None:
    """As in vLLM: aiperf recognises the histogram by its `num_spec_tokens` + 1 entries."""
    figures = SpeculationFigures()
    tree = DraftTree((5, 6), (-1, 0), (0.5, 0.5), (PHRASE, PHRASE))
    verdict = Verdict((0,), (5, 7), 5, (7, 8))
    figures.observe(Draft(tree=tree, committed_length=1), verdict, emitted=2)
    for max_draft_tokens, expected in ((None, [0, 1, 0, 0, 0]), (2, [0, 1, 0])):
        reported = metrics([generation(figures, max_draft_tokens)], 4)["speculative_decoding"]
        assert reported["acceptance_histogram"] == expected
        assert reported["num_spec_tokens"] == len(expected) - 1
    none = metrics([generation(SpeculationFigures())], 4)["speculative_decoding"]
    assert none["acceptance_histogram"] == [0] * 5
