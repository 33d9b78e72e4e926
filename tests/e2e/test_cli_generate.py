"""What `draftloop generate` says of a mistake: one line with the field, its rule and the value."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from draftloop.config import REPOSITORY
from draftloop.speculation import STRATEGIES
from orchestrator.cli import app
from orchestrator.cli_common import FAILED
from orchestrator.launcher import Stack
from tests.support.redis_server import free_port


def generated(server: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["generate", *arguments, "--server", server])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("",), "text: must not be empty; got ''"),
        (("x", "--strategy", "magic"),
         f"speculation.strategy: must be one of {', '.join(STRATEGIES)}; got 'magic'"),
        (("x", "--max-tokens", "-1"), "max_tokens: must be at least 1; got -1"),
        (("x", "--max-tokens", "0"), "max_tokens: must be at least 1; got 0"),
        (("x", "--max-draft-tokens", "-1"),
         "speculation.max_draft_tokens: must be at least 1; got -1"),
        (("x", "--max-draft-tokens", "0"),
         "speculation.max_draft_tokens: must be from 1 to 64; got 0"),
        (("x", "--seed", "-1"), "seed: must be from 0 to 18446744073709551615; got -1"),
        (("1 " * 2100,), "text: must have at most 2047 tokens (context length 2048); got '"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(stack: Stack, arguments: tuple[str, ...], complaint: str) -> None:
    result = generated(stack.address, *arguments)
    assert result.exit_code == FAILED
    [line] = result.stderr.splitlines()
    assert line.startswith(f"draftloop: {complaint}")
    assert result.stdout == ""


def test_the_command_itself_says_no_more() -> None:
    """Nothing listens there; the process, as a shell sees it."""
    address = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "generate", "x", "--server", address],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == FAILED and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"draftloop: no server at {address}: start one with `draftloop up`")
