"""The batch client: retries, waits, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from tenacity import wait_none

from draftloop.errors import Forbidden, InvalidInput, Unauthenticated, Unavailable
from orchestrator.batch import asker
from orchestrator.batch.asker import Asker
from orchestrator.batch.connection import connect
from orchestrator.batch.requests_file import MAX_URL_LENGTH, BatchRequest

ServerReply = httpx.Response | Exception

REQUEST = BatchRequest(custom_id="a", method="POST", url="/v1/completions", body={"prompt": "x"})
BUSY = httpx.Response(429, json={"error": {"message": "full"}}, headers={"retry-after": "0"})
STARTING = httpx.Response(503, json={"error": {"message": "no verifier"}})
NOT_READY, READY = httpx.Response(503), httpx.Response(200)
FINE = httpx.Response(200, json={"choices": []}, headers={"x-request-id": "r"})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asker, "PAUSE", wait_none())


def scripted_server(answers: Iterable[ServerReply]) -> Callable[[httpx.Request], httpx.Response]:
    """A server that gives these answers, one after the other."""
    remaining = iter(answers)

    def respond(_: httpx.Request) -> httpx.Response:
        answer = next(remaining)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return respond


async def ask_scripted_server(*answers: ServerReply, patience_s: float = 60) -> dict[str, Any]:
    transport = httpx.MockTransport(scripted_server(answers))
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        return await Asker(client, patience_s).answer(REQUEST)


@pytest.mark.parametrize(
    "first", [BUSY, STARTING, httpx.Response(502, text="<html>"), httpx.ConnectError("refused"),
              httpx.RemoteProtocolError("disconnected"), httpx.ConnectTimeout("")]
)  # fmt: skip
async def test_transient_failure_is_retried(first: ServerReply) -> None:
    answer = await ask_scripted_server(first, first, FINE)
    assert answer["custom_id"] == "a" and answer["error"] is None
    assert answer["response"] == {"status_code": 200, "request_id": "r", "body": {"choices": []}}


@pytest.mark.parametrize(
    ("status", "body"),
    [(400, {"error": {"message": "max_tokens"}}), (500, {}), (504, {"error": None})],
)
async def test_permanent_error_status_is_returned_as_the_answer(status: int, body: Any) -> None:
    answer = await ask_scripted_server(httpx.Response(status, json=body))
    assert answer["response"] == {"status_code": status, "request_id": "", "body": body}


async def test_timeout_is_not_retried() -> None:
    answer = await ask_scripted_server(httpx.ReadTimeout(""))
    assert answer["response"] is None
    assert answer["error"] == {"code": "timeout", "message": "ReadTimeout"}


async def test_unavailable_server_is_given_up_after_the_patience() -> None:
    with pytest.raises(Unavailable, match="no answer from http://there for 0 s: no verifier; the"):
        await ask_scripted_server(STARTING, NOT_READY, patience_s=0)


@pytest.mark.parametrize(
    ("server_reply", "status", "code"),
    [(STARTING, 503, None), (httpx.RemoteProtocolError("disconnected"), None, "no_answer")],
)
async def test_request_fails_when_only_it_is_unanswered(
    server_reply: ServerReply, status: int | None, code: str | None
) -> None:
    """One such request used to end this run and every later one; those after it were never sent."""
    answer = await ask_scripted_server(server_reply, READY, patience_s=0)
    assert (answer["response"] or {}).get("status_code") == status
    assert (answer["error"] or {}).get("code") == code


async def test_request_is_retried_while_other_requests_are_answered() -> None:
    answers = scripted_server([STARTING, STARTING, FINE])

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/ready":
            return answers(request)
        asks._silent_since = None  # as if another request was answered
        return NOT_READY

    transport = httpx.MockTransport(respond)
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        asks = Asker(client, patience_s=1e-9)
        assert (await asks.answer(REQUEST))["response"]["status_code"] == 200


async def test_redirecting_server_is_reported_before_the_first_request() -> None:
    """Redirects, which are not followed, used to count as answers to all requests."""
    redirect = httpx.Response(308, headers={"location": "https://there/v1/models"})
    transport = httpx.MockTransport(scripted_server([redirect]))
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        with pytest.raises(InvalidInput, match="sends on to https://there/v1/models"):
            await Asker(client, 60).require_server()


@pytest.mark.parametrize(
    ("server", "files", "words"),
    [
        ("http://127.0.0.1:80000", {}, "must be the address of an HTTP API"),
        ("http://127.0.0.1:0", {}, "must be the address of an HTTP API"),
        ("http://127.0.0.1:8000", {"tls_ca": Path("ca.pem")}, "must be https://"),
    ],
)
def test_unusable_address_is_refused(server: str, files: dict[str, Path], words: str) -> None:
    """An impossible port gave a traceback; with TLS files, the key was sent unencrypted."""
    with pytest.raises(InvalidInput, match=words):
        connect(server, api_key="key", timeout_s=1, concurrency=1, **files)  # type: ignore[arg-type]


async def test_undecodable_body_is_retried() -> None:
    answer = await ask_scripted_server(httpx.DecodingError("no gzip"), FINE)
    assert answer["response"]["status_code"] == 200


async def test_busy_server_counts_as_available() -> None:
    answer = await ask_scripted_server(*[BUSY] * 50, FINE, patience_s=0)
    assert answer["response"]["status_code"] == 200


async def test_retry_after_header_sets_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    waiting = httpx.Response(429, json={}, headers={"retry-after": "7"})
    dated = httpx.Response(429, json={}, headers={"retry-after": "Wed, 21 Oct 2037 07:28:00 GMT"})
    await ask_scripted_server(waiting, dated, FINE)
    assert slept == [7, 0]


async def test_retry_after_of_an_unavailable_server_waits_no_longer_than_the_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    maintenance = httpx.Response(503, json={}, headers={"retry-after": "3600"})
    await ask_scripted_server(maintenance, FINE, patience_s=60)
    assert slept == [60]


@pytest.mark.parametrize(("status", "error"), [(401, Unauthenticated), (403, Forbidden)])
async def test_wrong_key_is_reported_before_the_first_request(
    status: int, error: type[Exception]
) -> None:
    refusal = httpx.Response(status, json={"error": {"message": "not that key"}})
    transport = httpx.MockTransport(scripted_server([refusal]))
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        with pytest.raises(error, match="not that key"):
            await Asker(client, 60).require_server()


@pytest.mark.parametrize("end", ["\n", "\x07", "é", "a" * MAX_URL_LENGTH])
def test_invalid_url_is_a_validation_error(end: str) -> None:
    """An invalid URL used to end the run in the middle."""
    with pytest.raises(ValidationError, match="must be a path that begins with /v1/"):
        BatchRequest(custom_id="a", method="POST", url=f"/v1/completions{end}", body={})


async def test_answer_after_retries_marks_the_server_as_available() -> None:
    answers = scripted_server(
        [httpx.ConnectError("refused"), httpx.ReadTimeout(""), STARTING, FINE]
    )
    transport = httpx.MockTransport(answers)
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        asks = Asker(client, patience_s=60)
        await asks.answer(REQUEST)
        assert asks._silent_since is None
