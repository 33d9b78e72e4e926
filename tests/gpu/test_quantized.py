"""Eight-bit weights on a GPU: drafts do not change such a target model's output."""

from __future__ import annotations

import pytest

from tests.e2e.client import Case, first_difference
from tests.gpu.conftest import DRAFT_TOKENS, Serve

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]


def test_drafts_change_no_token_with_eight_bit_weights(serve: Serve, cases: list[Case]) -> None:
    """Both models quantized, in float32, where a row's rounding hardly depends on the batch."""
    flags = ("--quantization", "int8")
    with serve(dtype="float32", quantization="int8", drafter_flags=flags) as served:
        plain = served.client.tokens(cases, "autoregressive")
        assert sum(map(len, plain)) > 20 * len(plain)
        for strategy, concurrency in (("fused", 1), ("opt_tree", 8), ("lookahead", 8)):
            answers = served.client.answers(
                cases, strategy, concurrency, max_draft_tokens=DRAFT_TOKENS
            )
            outputs = [list(answer.token_ids) for answer in answers]
            assert not first_difference(plain, outputs), strategy
            figures = [answer.summary.speculation for answer in answers]
            assert sum(each.draft_tokens for each in figures) > 0, strategy
