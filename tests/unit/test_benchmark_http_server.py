"""What a measured server answers, and how its failures are reported."""

from __future__ import annotations

import json

import httpx
import pytest

from benchmarks.http_server import Answer, HttpServer
from benchmarks.prompts import Prompt
from benchmarks.workload import Case
from draftloop.errors import StartupFailure

CASE = Case(prompt=Prompt("a.py", "x", (5, 6)), tokens=3, temperature=0.5, seed=7)
SERVER = HttpServer("other", "http://other", {"seed": None, "cache_prompt": False})


def events(*contents: object) -> str:
    """A stream of server-sent events with a comment, as servers send it."""
    sent = [": waiting", *(f"data: {json.dumps(content)}" for content in contents), "data: [DONE]"]
    return "\n\n".join(sent) + "\n\n"


def text(part: str) -> dict[str, object]:
    return {"choices": [{"text": part}]}


async def complete(response: httpx.Response, asked: list[httpx.Request] | None = None) -> Answer:
    """The answer of a server that responds so to every request."""

    def respond(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append(request)
        return response

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
        return await SERVER.complete(client, "target", CASE)


async def test_answer_is_put_together_from_all_events() -> None:
    asked: list[httpx.Request] = []
    usage = {"choices": [], "usage": {"completion_tokens": 3}}
    stream = httpx.Response(200, text=events(text("a"), text("bc"), usage))
    answer = await complete(stream, asked)
    assert (answer.text, answer.tokens) == ("abc", 3)
    assert 0 < answer.first_s <= answer.last_s
    assert str(asked[0].url) == "http://other/v1/completions"
    assert json.loads(asked[0].content) == {
        "model": "target", "prompt": [5, 6], "max_tokens": 3, "temperature": 0.5, "seed": None,
        "stream": True, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "ignore_eos": True,
        "cache_prompt": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(400, text="no such field"), "other: 400: no such field"),
        (
            httpx.Response(200, text=events(text("a"), {"error": {"message": "the engine died"}})),
            "other: the answer broke off: .*the engine died",
        ),
        (httpx.Response(200, text=events(text("abc"))), "other: the answer was not streamed"),
    ],
)
async def test_failed_answer_is_reported_with_the_servers_name(
    response: httpx.Response, message: str
) -> None:
    with pytest.raises(StartupFailure, match=message):
        await complete(response)


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(404),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"data": []}),
    ],
)
async def test_server_without_models_is_named(response: httpx.Response) -> None:
    transport = httpx.MockTransport(lambda request: response)
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(StartupFailure, match="other: http://other lists no model: "):
            await SERVER.model(client)
