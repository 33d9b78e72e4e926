"""On a GPU in bfloat16, where near ties are common, plain decoding and every draft agree exactly.

They do where every forward is computed in steps of one shape, so that a row's bits do not depend
on what is computed beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftloop.speculation import STRATEGIES
from tests.e2e.client import Case, first_difference
from tests.gpu.conftest import AT_ONCE, DRAFT_TOKENS, Serve, Served

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
WARNING = "rounding depends on the batch"


@pytest.fixture(scope="module")
def served(serve: Serve) -> Iterator[Served]:
    with serve(dtype="bfloat16") as running:
        yield running


@pytest.fixture(scope="module")
def expected(served: Served, cases: list[Case]) -> list[list[int]]:
    """What plain decoding says, one request at a time."""
    return served.client.tokens(cases, "autoregressive")


def test_no_service_says_that_rounding_depends_on_the_batch(served: Served) -> None:
    """They compare a row alone with the same one in a draft when they start."""
    for role in ("verifier", "drafter"):
        assert WARNING not in served.stack.processes[role].log_file.read_text(), role


@pytest.mark.parametrize(("concurrency", "count"), AT_ONCE)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_says_what_plain_decoding_says(
    served: Served,
    cases: list[Case],
    expected: list[list[int]],
    strategy: str,
    concurrency: int,
    count: int,
) -> None:
    size = None if strategy == "autoregressive" else DRAFT_TOKENS
    said = served.client.tokens(cases[:count], strategy, concurrency, max_draft_tokens=size)
    assert not first_difference(expected[:count], said)
