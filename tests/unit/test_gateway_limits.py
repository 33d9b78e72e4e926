"""A key's requests are counted before their bodies are read, whatever becomes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftloop.errors import InvalidInput, Overloaded
from orchestrator.front import Front
from orchestrator.key_file import KeyEntry, hash_of, new_key
from orchestrator.servicer import GenerationServicer
from orchestrator.tokenizer import Tokenizer
from protos import generation_pb2 as pb
from tests.support.gateway import Described, gateway
from tests.support.grpc_context import FakeContext

KEY = new_key()
CHAT = [{"role": "user", "content": "hello"}]
REFUSED = {"temperature": -1}


class TokenizerReached(Exception):
    """Raised when a request reaches the tokenizer."""


Limited = tuple[httpx.AsyncClient, Described]


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Limited]:
    """A server whose key allows two requests a minute."""
    keys = tmp_path / "keys.toml"
    entry = KeyEntry(name="a", sha256=hash_of(KEY), tenant="", requests_per_minute=2)
    keys.write_text(entry.toml())
    async with gateway(keys) as (client, deployment):
        client.headers["authorization"] = f"Bearer {KEY}"
        yield client, deployment


def _forbid_tokenizing(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_reached(*_: Any, **__: Any) -> None:
        raise TokenizerReached

    for name in ("encode", "encode_async", "decode"):
        monkeypatch.setattr(Tokenizer, name, raise_reached)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": "a", **REFUSED}, 400),
        ("/v1/chat/completions", {"messages": CHAT, **REFUSED}, 400),
        ("/v1/messages", {"messages": CHAT, **REFUSED}, 400),
        ("/v1/messages/count_tokens", {"messages": CHAT}, 200),
        ("/tokenize", {"prompt": "a"}, 200),
        ("/detokenize", {"tokens": [5]}, 200),
    ],
)
async def test_refused_and_tokenize_requests_count_against_the_rate(
    limited: Limited, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], status: int
) -> None:
    client, _ = limited
    for _ in range(2):
        assert (await client.post(path, json=body)).status_code == status
    _forbid_tokenizing(monkeypatch)
    over = await client.post(path, json=body)
    assert over.status_code == 429 and over.headers["retry-after"]


async def test_every_choice_of_every_prompt_counts_against_the_rate(limited: Limited) -> None:
    client, _ = limited
    body = {"prompt": ["a"], "n": 2, **REFUSED}
    assert (await client.post("/v1/completions", json=body)).status_code == 400
    assert (await client.post("/tokenize", json={"prompt": "a"})).status_code == 429


@pytest.mark.parametrize("name", ["Generate", "GenerateOnce", "Tokenize", "Detokenize"])
async def test_grpc_requests_count_against_the_rate(
    limited: Limited, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _, deployment = limited
    servicer: Any = GenerationServicer(Front(deployment))
    parameters = pb.GenerationParameters(text="a", request_id="\n")
    requests = {
        "Generate": pb.GenerateRequest(parameters=parameters),
        "GenerateOnce": pb.GenerateOnceRequest(parameters=parameters),
        "Tokenize": pb.TokenizeRequest(text="a"),
        "Detokenize": pb.DetokenizeRequest(token_ids=[5]),
    }

    async def ask() -> None:
        answer = getattr(servicer, name)(requests[name], FakeContext(KEY))
        if name == "Generate":
            await anext(answer)
        else:
            await answer

    for _ in range(2):
        if name.startswith("Generate"):
            with pytest.raises(InvalidInput, match="request_id"):
                await ask()
        else:
            await ask()
    _forbid_tokenizing(monkeypatch)
    with pytest.raises(Overloaded, match="at most 2 requests a minute"):
        await ask()
