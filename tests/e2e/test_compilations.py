"""Everything is compiled before a role reports that it is ready: no request waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftloop.config import REPOSITORY
from draftloop.speculation import STRATEGIES
from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig
from tests.e2e.client import Case, Client, held_out_prompts
from tests.e2e.conftest import SAMPLINGS

RECORDER = REPOSITORY / "tests" / "support" / "compilations"


def test_no_request_waits_for_a_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither alone nor beside others: with them, drafts take another way through the code.

    The verifier used to compile how it follows a draft, and the drafter how it keeps a tree's rows,
    for 0.1 to 0.4 seconds each.
    """
    record = tmp_path / "compilations"
    paths = [str(RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("COMPILATIONS", str(record))
    monkeypatch.setenv("DRAFTLOOP_DRAFTER_DRAFT_AHEAD", "on")  # as on GPUs
    config = StackConfig(
        port=0, http_port=None, drafter_port=0, verifier_port=0, start_timeout_s=240
    )
    with Stack(config) as stack:
        at_start = record.read_text().splitlines()
        client = Client(stack.address)
        prompts = held_out_prompts(len(SAMPLINGS), 96)
        cases = [
            Case(prompt, 24, sampling) for prompt, sampling in zip(prompts, SAMPLINGS, strict=True)
        ]
        for strategy in STRATEGIES:
            for concurrency in (1, 4):
                client.tokens(cases, strategy, concurrency)
            client.tokens(cases[:2], strategy, max_draft_tokens=8)
        later = record.read_text().splitlines()[len(at_start) :]
    assert {line.split(":")[0] for line in at_start} == {
        "verifier_service", "drafter_service", "orchestrator",
    }  # fmt: skip
    assert later == []
