"""What is measured of running servers, and the table of it."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.http_server import Answer, HttpServer, read_server
from benchmarks.prompts import Prompt
from benchmarks.servers import Plan
from benchmarks.servers_table import Cell, Run, page, summed

SAMPLED, GREEDY = Cell("editing", 0.8, 1), Cell("editing", 0.0, 2)


def answer(seconds: float, text: str = "same") -> Answer:
    """Eleven tokens, the first after 50 ms."""
    return Answer(text, 11, 0.05, 0.05 + seconds)


MEASURED = [
    (SAMPLED, {"ours": Run(0.15, [answer(0.1)]), "other": Run(0.65, [answer(0.5)])}),
    (SAMPLED, {"ours": Run(0.25, [answer(0.2)]), "other": Run(1.15, [answer(1.0)])}),
    (
        GREEDY,
        {
            "ours": Run(0.3, [answer(0.1), answer(0.25)]),
            "other": Run(1.1, [answer(1.0), answer(1.05, "another")]),
        },
    ),
]


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("vLLM=http://host:8000", HttpServer("vLLM", "http://host:8000")),
        ("ours=https://host/v1/", HttpServer("ours", "https://host")),
        ('a=http://host {"cache_prompt": false}',
         HttpServer("a", "http://host", {"cache_prompt": False})),
    ],
)  # fmt: skip
def test_server_is_read(text: str, server: HttpServer) -> None:
    assert read_server(text) == server


@pytest.mark.parametrize(
    "text", ["http://host", "=http://host", "a=host:80", "a=http://h {", "a=http://h []"]
)
def test_malformed_server_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be NAME=URL"):
        read_server(text)


def test_rows_compare_each_server_with_the_first_one_in_the_same_cell() -> None:
    ours, other, greedy, greedy_other = summed(MEASURED)
    assert (ours.server, ours.workload, ours.runs, ours.ratio) == ("ours", "editing", 2, 1.0)
    assert (ours.tokens_per_second, ours.first_token_ms) == (66.67, 50.0)
    assert (other.server, other.ratio, other.tokens_per_second) == ("other", 0.2, 13.33)
    assert ours.equal is None  # sampled texts of different generators are not compared
    assert (greedy.requests, greedy.equal, greedy_other.equal) == (2, 1.0, 0.5)
    assert greedy.together == 73.33


def test_page_has_a_line_for_every_row() -> None:
    text = page(summed(MEASURED))
    assert "| editing | 0.8 | 1 | other | 50 | 13.3 | 0.20x | 12.2 | - | 2 |" in text
    assert "| editing | 0 | 2 | other | 50 | 9.8 | 0.17x | 20.0 | 50% | 1 |" in text


def test_plan_measures_every_cell_before_the_next_prompts() -> None:
    prompts = [Prompt(f"{number}.py", "x", (number,)) for number in range(3)]
    plan = Plan({"completion": prompts, "agent": prompts[:2]}, (0.8, 0.0), (1, 2), tokens=9)
    repetitions = list(plan.repetitions())
    cells = [cell for cell, _ in repetitions]
    assert len(set(cells[:8])) == 8
    assert cells == cells[:8] * 3
    assert [[case.prompt.file for case in cases] for _, cases in repetitions[8:10]] == [
        ["1.py"],
        ["1.py", "2.py"],
    ]
    assert len({case.seed for _, cases in repetitions for case in cases}) == 3
