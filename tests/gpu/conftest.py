"""Fixtures of the GPU tests: real processes with both models on the device.

Each file starts the services that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig
from tests.e2e.client import Case, Client, held_out_prompts
from tests.support.device import DEVICE

FOUND = "found"
START_S = 120.0
TOKENS = 64
DRAFT_TOKENS = 12  # enough for every part of every strategy, even where that does not pay
UNFILTERED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 1.0},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Served:
    """A running stack and a client of it."""

    stack: Stack
    client: Client


Serve = Callable[..., AbstractContextManager[Served]]
Tell = Callable[[str], None]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what tests noted with `tell`, at the end of the run."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for report in reports:
        for name, value in report.user_properties:
            if name == FOUND:
                terminalreporter.write_line(f"found: {value}")


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Notes a line that is printed at the end of the run."""

    def note(line: str) -> None:
        record_property(FOUND, line)

    return note


@contextmanager
def _serve(**settings: Any) -> Iterator[Served]:
    defaults: dict[str, Any] = {
        "port": 0, "http_port": None, "drafter_port": 0, "verifier_port": 0, "device": DEVICE,
        "start_timeout_s": START_S,
    }  # fmt: skip
    with Stack(StackConfig(**{**defaults, **settings})) as stack:
        client = Client(stack.address)
        try:
            yield Served(stack, client)
        finally:
            client.channel.close()


@pytest.fixture(scope="session")
def serve() -> Serve:
    """Starts all roles on the device, with the given settings of `StackConfig`."""
    return _serve


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    """Twelve prompts at three temperatures in turn, each with its own seed."""
    return [
        Case(prompt, TOKENS, {**UNFILTERED[index % len(UNFILTERED)], "seed": 5000 + index})
        for index, prompt in enumerate(held_out_prompts(12, longest=96))
    ]


@pytest.fixture(scope="session")
def shaped_cases(cases: list[Case]) -> list[Case]:
    """Six of the prompts with filters, penalties, bias and grammars."""
    samplings: tuple[dict[str, Any], ...] = (
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.4},
        {"temperature": 1.0, "top_k": 40, "min_p": 0.02, "frequency_penalty": 0.2},
        {"repetition_penalty": 1.1, "logit_bias": {17: 2.0, 200: -100.0}},
        {"temperature": 0.9, "grammar": {"regex": "[a-z_ ]{24,40}"}},
        {"temperature": 0.9, "top_p": 0.95, "grammar": {"regex": "[0-9]{12,20}"}},
    )
    return [
        replace(case, sampling={**sampling, "seed": 6000 + index})
        for index, (case, sampling) in enumerate(zip(cases, samplings, strict=False))
    ]
