"""On a GPU in float32 no strategy changes a token, alone or in shared forward passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftloop.speculation import STRATEGIES
from tests.e2e.client import Case, first_difference
from tests.gpu.conftest import DRAFT_TOKENS, Serve, Served, Tell
from tests.support.device import DEVICE

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
# Requests at a time, and requests in all: one at a time, each forward has one session.
AT_ONCE = ((1, 6), (8, 18))


@pytest.fixture(scope="module")
def served(serve: Serve) -> Iterator[Served]:
    with serve(dtype="float32") as running:
        yield running


@pytest.fixture(scope="module")
def every_case(cases: list[Case], shaped_cases: list[Case]) -> list[Case]:
    return [*cases[:3], *shaped_cases, *cases[3:]]


@pytest.fixture(scope="module")
def expected(served: Served, every_case: list[Case]) -> list[list[int]]:
    """The output of plain decoding, one request at a time."""
    outputs = served.client.tokens(every_case, "autoregressive")
    assert sum(map(len, outputs)) > 20 * len(outputs)
    return outputs


@pytest.mark.parametrize(("concurrency", "count"), AT_ONCE)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_equals_plain_decoding(
    served: Served,
    every_case: list[Case],
    expected: list[list[int]],
    strategy: str,
    concurrency: int,
    count: int,
    tell: Tell,
) -> None:
    """Greedy and sampled, with filters, penalties, bias and grammars."""
    drafts = strategy != "autoregressive"
    size = DRAFT_TOKENS if drafts else None
    answers = served.client.answers(
        every_case[:count], strategy, concurrency, max_draft_tokens=size
    )
    outputs = [list(answer.token_ids) for answer in answers]
    assert not first_difference(expected[:count], outputs)
    figures = [answer.summary.speculation for answer in answers]
    assert (sum(each.draft_tokens for each in figures) > 0) == drafts
    accepted = sum(each.accepted_tokens for each in figures)
    rounds = sum(each.rounds for each in figures)
    tell(f"{strategy} x{concurrency}: {accepted} accepted in {rounds} rounds on {DEVICE}")
