"""What the launcher tells the roles."""

from __future__ import annotations

from itertools import pairwise

import pytest

from draftloop.config import bundled_model
from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig


@pytest.mark.parametrize(("draft", "threads"), [("drafter", ["1"]), ("drafter-large", [])])
def test_a_draft_model_that_one_core_holds_gets_one_thread(draft: str, threads: list[str]) -> None:
    stack = Stack(StackConfig(draft=bundled_model(draft), device="cpu"))
    flags = stack._drafter_flags()
    stack.stop()
    asked = [value for name, value in pairwise(flags) if name == "--threads"]
    assert asked == threads
