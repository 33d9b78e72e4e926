"""Every program under examples/ runs as documented and prints what it promises."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import httpx
import pytest

from draftloop.config import REPOSITORY
from orchestrator.launcher import Stack
from tests.e2e.conftest import InProcess

PROMISED = {
    "generate": r"def fibonacci\(n\):.+\n48 tokens, ended by length\n\w+: \d\.\d+ tokens per round",
    "stream": r".+\n… enough\n",
    "async_many": r"(?:'.+' -> (?:'.*'|\".*\")\n){6}",  # `repr` chooses either kind of quotes
    "logprobs": r"(?:'.*' +\d+%   likeliest: '.*' \d+%, '.*' \d+%, '.*' \d+%\n){8}",
    "structured": r"\{'name': .+, 'colours': \[.+\]\}\nthe same tokens: yes\ntokens per round",
    "prediction": r"the same tokens: yes\nrounds without the prediction: \d+\nrounds with it: +\d+",
}


def run_example(example: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-m", f"examples.{example}", *arguments]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_every_example_is_tested() -> None:
    files = {file.stem for file in (REPOSITORY / "examples").glob("[!_]*.py")}
    assert files == {*PROMISED, "openai_http", "tools"}


@pytest.mark.parametrize("example", [name for name in PROMISED if name != "prediction"])
def test_example_prints_what_it_promises(stack: Stack, example: str) -> None:
    output = run_example(example, "--server", stack.address)
    assert re.search(PROMISED[example], output, re.DOTALL), output


async def test_prediction_saves_rounds_on_a_fresh_server(orchestrator: InProcess) -> None:
    async with orchestrator() as address:
        output = await asyncio.to_thread(run_example, "prediction", "--server", address)
    assert re.search(PROMISED["prediction"], output), output
    rounds_without, rounds_with = map(int, re.findall(r": +(\d+)", output))
    assert rounds_with < rounds_without / 2


def test_openai_package_works_unchanged(stack: Stack) -> None:
    """The text is that of plain decoding."""
    url = f"http://{stack.http_address}/v1"
    name, _, output = run_example("openai_http", "--base-url", url).partition("\n")
    body = {
        "prompt": "def fibonacci(n):",
        "max_tokens": 48,
        "temperature": 0.7,
        "seed": 1,
        "speculative": {"strategy": "autoregressive"},
    }
    plain = httpx.post(f"{url}/completions", json=body, timeout=60).raise_for_status().json()
    assert name == f"model: {plain['model']}"
    assert output == plain["choices"][0]["text"] + "\n"


def test_openai_package_calls_tools(stack: Stack) -> None:
    """The arguments of the call fit the schema, and the tool's answer goes back to the model."""
    output = run_example("tools", "--base-url", f"http://{stack.http_address}/v1")
    call = r"called: weather \{'city': '(Bern|Berlin|Rome)', 'days': [1-7]\}\n."
    assert re.match(call, output, re.DOTALL), output
