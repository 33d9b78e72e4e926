"""The rows and the page made from the runs of a load benchmark."""

from __future__ import annotations

from benchmarks.load_table import Run, page, summed
from benchmarks.outcome import Outcome
from benchmarks.systems import PLAIN


def outcome(*token_ids: int, rounds: int, fallback: int | None = None) -> Outcome:
    """An answer whose first token took 10 ms and each further one 4 ms."""
    return Outcome(
        token_ids=token_ids, first_tokens=1, first_token_s=0.01,
        decode_s=0.004 * (len(token_ids) - 1), rounds=rounds, drafted=3 * rounds,
        fallback_rounds=fallback,
    )  # fmt: skip


PLAIN_RUNS = [Run(seconds, [outcome(1, 2, 3, rounds=2), outcome(4, 5, rounds=1)])
              for seconds in (1.0, 2.0, 1.0)]  # fmt: skip
DRAFTED_RUNS = [Run(seconds, [outcome(1, 2, 3, rounds=1), outcome(4, last, rounds=1, fallback=1)])
                for seconds, last in ((0.5, 5), (0.5, 5), (0.25, 6))]  # fmt: skip
MEASURED = {2: [{PLAIN: plain, "opt_tree": drafted}
                for plain, drafted in zip(PLAIN_RUNS, DRAFTED_RUNS, strict=True)]}  # fmt: skip


def test_row_compares_each_run_with_plain_decoding_of_the_same_requests() -> None:
    plain, drafted = summed(MEASURED, [PLAIN, "opt_tree"])
    assert (plain.sessions, plain.runs, plain.ratio, plain.equal) == (2, 3, 1.0, 1.0)
    assert drafted.ratio == 4.0  # the median of 2, 4 and 4
    assert drafted.equal == 5 / 6  # one of six answers has another token
    assert (plain.tokens_per_second, drafted.tokens_per_second) == (5.0, 10.0)
    assert (drafted.tokens_per_round, drafted.nodes_per_round, drafted.fallback) == (1.5, 3.0, 0.5)
    assert (drafted.first_token_ms, drafted.per_token_ms) == (10.0, 4.0)


def test_page_has_a_line_for_every_row() -> None:
    text = page("a title", summed(MEASURED, [PLAIN, "opt_tree"]))
    assert "**many requests at a time, a title**" in text
    assert "| 2 | opt_tree | 10.0 | 4.00x | 10 | 4.0 | 1.50 | 3.0 | 50% | 83% | 3 |" in text
