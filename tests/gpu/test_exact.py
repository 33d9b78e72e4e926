"""On a GPU in bfloat16, with frequent near ties, all strategies equal plain decoding exactly.

Every forward pass is computed in padded steps of one shape, so that a row's bits do not depend on
the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftloop.speculation import STRATEGIES
from tests.e2e.client import Case, first_difference
from tests.gpu.conftest import DRAFT_TOKENS, Serve, Served

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
WARNING = "rounding depends on the batch"
# Requests at a time, and requests in all: one at a time, each forward has one session.
AT_ONCE = ((1, 6), (8, 12))


@pytest.fixture(scope="module")
def served(serve: Serve) -> Iterator[Served]:
    with serve(dtype="bfloat16") as running:
        yield running


@pytest.fixture(scope="module")
def expected(served: Served, cases: list[Case]) -> list[list[int]]:
    """The output of plain decoding, one request at a time."""
    outputs = served.client.tokens(cases, "autoregressive")
    assert sum(map(len, outputs)) > 20 * len(outputs)
    return outputs


def test_no_service_warns_of_batch_dependent_rounding(served: Served) -> None:
    """At the start, services compare a row computed alone with the same row in a draft."""
    for role in ("verifier", "drafter"):
        assert WARNING not in served.stack.processes[role].log_file.read_text(), role


@pytest.mark.parametrize(("concurrency", "count"), AT_ONCE)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_equals_plain_decoding(
    served: Served,
    cases: list[Case],
    expected: list[list[int]],
    strategy: str,
    concurrency: int,
    count: int,
) -> None:
    drafts = strategy != "autoregressive"
    size = DRAFT_TOKENS if drafts else None
    answers = served.client.answers(cases[:count], strategy, concurrency, max_draft_tokens=size)
    outputs = [list(answer.token_ids) for answer in answers]
    assert not first_difference(expected[:count], outputs)
    figures = [answer.summary.speculation for answer in answers]
    assert (sum(each.draft_tokens for each in figures) > 0) == drafts
