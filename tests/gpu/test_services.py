"""The services on a GPU apart from tokens: costs, profile, cancellation, command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from protos import generation_pb2 as pb
from tests.e2e.client import Case
from tests.gpu.conftest import Serve, Served, Tell
from tests.support.device import DEVICE
from tests.support.sessions import wait_until_free

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
MEASURED = {1, 8, 32, 128}  # new tokens in a forward pass


@pytest.fixture(scope="module")
def served(serve: Serve) -> Iterator[Served]:
    """The services as `draftloop up --device cuda` starts them."""
    with serve() as running:
        yield running


def run(served: Served, *arguments: str) -> Result:
    environment = {"COLUMNS": "160"}
    words = [*arguments, "--server", served.stack.address]
    return CliRunner().invoke(app, words, env=environment)


def test_costs_are_measured_on_the_device(served: Served) -> None:
    info = served.client.stub.Info(pb.GenerationInfoRequest())
    for model in (info.verifier, info.drafter):
        assert (model.device, model.dtype) == (DEVICE, "bfloat16")
        points = model.cost_curve
        assert {point.tokens for point in points} >= MEASURED
        assert all(point.forward_ns > 0 for point in points)
        assert {point.batch for point in points} == {1, 2, 4}


def test_profile_names_the_device(served: Served, tell: Tell) -> None:
    result = run(served, "profile")
    assert result.exit_code == 0, result.output
    assert result.output.count(f"bfloat16, {DEVICE}") == 2
    for line in result.output.splitlines():
        tell(line)
    profile = json.loads(run(served, "profile", "--json").output)
    assert profile["verifier"]["device"] == profile["drafter"]["device"] == DEVICE


def test_command_line_generates(served: Served) -> None:
    result = run(served, "generate", "def add(a, b):", "--max-tokens", "24", "--temperature", "0")
    assert result.exit_code == 0, result.output
    assert result.output.strip()


def test_cancelled_request_frees_its_sessions(served: Served) -> None:
    """The temperature is high so that no text loops."""
    hot = Case((5, 6, 7), 2000, {"temperature": 1.5})
    parameters = hot.parameters("opt_tree", ignore_eos=True)
    for _ in range(3):
        call = served.client.stub.Generate(pb.GenerateRequest(parameters=parameters))
        next(call)
        call.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.CANCELLED
    wait_until_free(served.stack)


def test_output_fills_the_whole_context(served: Served) -> None:
    """From a prompt of many steps to the end of the context."""
    prompt = tuple(5 + index % 4000 for index in range(1900))
    plain = served.client.once(Case(prompt, 400), "autoregressive", ignore_eos=True)
    drafted = served.client.once(Case(prompt, 400), "fused", ignore_eos=True)
    assert len(plain.token_ids) == len(drafted.token_ids) > 100


def test_log_probabilities_are_returned(served: Served) -> None:
    answer = served.client.once(Case((5, 6, 7), 16), "fused", logprobs=3)
    logprobs = [float(each.logprob) for each in answer.logprobs]
    assert len(logprobs) == len(answer.token_ids) and all(value <= 0 for value in logprobs)
