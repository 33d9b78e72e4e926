"""`draftloop generate`: what it writes to a pipe, and how it reports mistakes.

A mistake is reported in one line with the field, its rule and the value.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from draftloop.client import Client, Completion
from draftloop.config import REPOSITORY
from draftloop.speculation import STRATEGIES
from orchestrator.cli import app
from orchestrator.cli_common import EXIT_FAILED
from orchestrator.launcher import Stack
from tests.support.ports import quiet_port


def run_generate(server: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["generate", *arguments, "--server", server])


@pytest.mark.parametrize(
    ("arguments", "problem"),
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
def test_invalid_arguments_are_reported_in_one_line(
    stack: Stack, arguments: tuple[str, ...], problem: str
) -> None:
    result = run_generate(stack.address, *arguments)
    assert result.exit_code == EXIT_FAILED
    [line] = result.stderr.splitlines()
    assert line.startswith(f"draftloop: {problem}")
    assert result.stdout == ""


PROMPT = "x = "
GREEDY = ("--temperature", "0", "--max-tokens", "12")


@pytest.fixture(scope="module")
def greedy_completion(stack: Stack) -> Completion:
    """The greedy continuation of the prompt."""
    with Client(stack.address) as client:
        return client.generate(PROMPT, temperature=0, max_tokens=12)


def test_pipe_receives_only_the_text(stack: Stack, greedy_completion: Completion) -> None:
    """Only the text goes to stdout. Prompt, legend and figures used to be written there too."""
    result = run_generate(stack.address, PROMPT, *GREEDY)
    assert result.exit_code == 0 and result.stdout == f"{greedy_completion.text}\n"
    legend, figures = result.stderr.splitlines()
    assert legend.startswith("tokens from: ") and "12 tokens in" in figures
    assert (
        run_generate(stack.address, PROMPT, *GREEDY, "--no-echo").stdout
        == f"{greedy_completion.text}\n"
    )
    assert (
        run_generate(stack.address, PROMPT, *GREEDY, "--echo").stdout
        == f"{PROMPT}{greedy_completion.text}\n"
    )


def test_structured_output_to_a_pipe_is_json(stack: Stack, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 9}},
              "required": ["age"], "additionalProperties": False}  # fmt: skip
    (tmp_path / "form.json").write_text(json.dumps(schema))
    result = run_generate(stack.address, PROMPT, "--json-schema", str(tmp_path / "form.json"))
    assert json.loads(result.stdout).keys() == {"age"}


def test_json_output_is_exactly_one_object(stack: Stack, greedy_completion: Completion) -> None:
    def read(*arguments: str) -> Any:
        result = run_generate(stack.address, PROMPT, *GREEDY, "--json", *arguments)
        assert result.exit_code == 0 and result.stderr == "", result.output
        return json.loads(result.stdout)

    answer = read()
    assert (answer["text"], answer["token_ids"]) == (
        greedy_completion.text,
        list(greedy_completion.token_ids),
    )
    assert answer["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 12
    assert answer["figures"]["strategy"] == "fused" and answer["timings"]["decode_ns"] > 0
    both = read("--compare")
    assert both["identical"] is True and both["plain"]["text"] == both["drafted"]["text"]
    assert both["plain"]["figures"]["strategy"] == "autoregressive"


def test_comparison_is_printed_beside_the_texts(
    stack: Stack, greedy_completion: Completion
) -> None:
    result = run_generate(stack.address, PROMPT, *GREEDY, "--compare")
    assert result.stdout == f"{greedy_completion.text}\n" * 2
    assert result.stderr.splitlines()[-1] == "identical tokens"


def test_comparison_runs_the_drafted_request_first(stack: Stack) -> None:
    """The drafted run comes first. The plain run used to, and its text was then drafted from."""
    result = run_generate(stack.address, PROMPT, *GREEDY, "--compare")
    ways = [line.partition(":")[0] for line in result.stderr.splitlines() if " tokens in " in line]
    assert ways == ["fused", "autoregressive"]


def test_comparison_obeys_the_phrase_scope(stack: Stack) -> None:
    """Both runs obey the phrase scope. The plain run used to share its text under any scope."""

    def namespaces() -> int:
        with Client(stack.address) as client:
            phrases = client.info().phrases
        assert phrases is not None
        return phrases.namespaces

    before = namespaces()
    arguments = (*GREEDY, "--compare", "--tenant", "compared")
    for scope in ("off", "private"):
        assert run_generate(stack.address, PROMPT, *arguments, "--phrases", scope).exit_code == 0
    assert namespaces() == before
    assert run_generate(stack.address, PROMPT, *arguments).exit_code == 0
    assert namespaces() == before + 1


def test_grpc_call_to_the_http_port_gets_a_hint(stack: Stack) -> None:
    """A gRPC call to the HTTP port gets a hint. It used to say that no server was running."""
    assert stack.http_address is not None
    result = run_generate(stack.http_address, "x")
    assert result.exit_code == EXIT_FAILED
    [line] = result.stderr.splitlines()
    assert line.startswith(f"draftloop: what listens at {stack.http_address} speaks no gRPC")
    assert "the HTTP API's port is not gRPC's, by default 50051" in line


def test_installed_command_prints_one_line_when_nothing_listens() -> None:
    """The installed command as a process: nothing listens, and it prints one line only."""
    address = f"127.0.0.1:{quiet_port()}"
    result = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "generate", "x", "--server", address],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == EXIT_FAILED and result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith(f"draftloop: no server at {address}: start one with `draftloop up`")


def test_character_missing_from_the_output_encoding_is_replaced(stack: Stack) -> None:
    """A character that the output encoding lacks is replaced. It used to end in a traceback."""
    result = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "generate", "# ж", "--echo", *GREEDY,
         "--server", stack.address],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert result.returncode == 0 and result.stdout.startswith("# ?"), result.stderr
