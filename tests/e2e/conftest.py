"""Fixtures of the end-to-end tests.

One stack of real processes serves the whole run, with the bundled pair of models in float32.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
from openai import OpenAI

from draftloop.rpc.server import RoleServer
from orchestrator.config import OrchestratorSettings
from orchestrator.deployment import Deployment
from orchestrator.front import Front
from orchestrator.launcher import Stack
from orchestrator.servicer import SERVICE_NAME, GenerationServicer, register
from orchestrator.stack_config import StackConfig
from tests.e2e.client import CALL_TIMEOUT_S, Case, Client, held_out_prompts
from tests.e2e.reasoning import TEMPLATE
from tests.support.forked import ForkedStack
from tests.support.opt_in import only_on_request
from tests.support.own_orchestrator import own_orchestrator

PERSON = """{
    "type": "object", "additionalProperties": false,
    "required": ["name", "age", "tags"],
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "minItems": 2, "maxItems": 4, "items": {"enum": ["red", "blue"]}}
    }
}"""
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.4},
    {"temperature": 1.0, "top_k": 40, "min_p": 0.02, "frequency_penalty": 0.2},
    {"repetition_penalty": 1.1, "logit_bias": {17: 2.0, 200: -100.0}},
    {"temperature": 0.9, "top_p": 0.95, "grammar": {"json_schema": PERSON}},
)

UNFILTERED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 1.0},
)  # fmt: skip
WANTED = "TEST_LOSSLESS"
TIMEOUT_S = 1800

InProcess = Callable[..., AbstractAsyncContextManager[str]]


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker of tests that run only on request."""
    config.addinivalue_line("markers", f"lossless: takes minutes; {WANTED}=1 runs it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests that take minutes unless they are requested."""
    chosen = [item for item in items if item.get_closest_marker("lossless")]
    reason = f"takes minutes: set {WANTED}=1"
    only_on_request(chosen, variable=WANTED, timeout_s=TIMEOUT_S, reason=reason)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """All three roles. A test that kills one has to start it again."""
    config = StackConfig(
        port=0, http_port=0, drafter_port=0, verifier_port=0, dtype="float32", start_timeout_s=240
    )
    with ForkedStack(config) as running:
        yield running


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[Client]:
    """A client of the stack's orchestrator."""
    client = Client(stack.address)
    yield client
    client.channel.close()


@pytest.fixture(scope="session")
def base(stack: Stack) -> str:
    """Address of the stack's HTTP API."""
    return f"http://{stack.http_address}"


@pytest.fixture(scope="session")
def http(base: str) -> Iterator[httpx.Client]:
    """A plain HTTP client of the stack."""
    with httpx.Client(base_url=base, timeout=CALL_TIMEOUT_S) as client:
        yield client


@pytest.fixture(scope="session")
def api(base: str) -> Iterator[OpenAI]:
    """OpenAI's own client of the stack."""
    with OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reasoner(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """OpenAI's client of an orchestrator with a reasoning template, on the stack's services."""
    with own_orchestrator(stack, tmp_path_factory.mktemp("reasoner"), TEMPLATE) as client:
        yield client


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    """Twelve prompts under seven sampling settings in turn, each case with its own seed."""
    prompts = held_out_prompts(12, longest=96)
    return [
        Case(prompt, 64, {**SAMPLINGS[index % len(SAMPLINGS)], "seed": 1000 + index})
        for index, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="session")
def expected(client: Client, cases: list[Case]) -> list[list[int]]:
    """The output of plain decoding, one request at a time."""
    return client.tokens(cases, "autoregressive")


@pytest.fixture
def orchestrator(stack: Stack) -> InProcess:
    """Starts an orchestrator in this process; by default it uses the stack's model services."""

    @asynccontextmanager
    async def started(**settings: Any) -> AsyncIterator[str]:
        defaults = {
            "listen": "127.0.0.1:0",
            "http_listen": "",
            "verifiers": stack.processes["verifier"].address,
            "drafters": stack.processes["drafter"].address,
        }
        chosen = OrchestratorSettings(**{**defaults, **settings})
        server = RoleServer(SERVICE_NAME, chosen)
        deployment = Deployment(chosen)
        register(GenerationServicer(Front(deployment)), server.server)
        await server.listen()
        await deployment.start()
        try:
            yield server.address
        finally:
            await server.server.stop(0)
            await deployment.stop()

    return started
