"""Asks a deployment's HTTP API, and asks again where that is worth it."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from draftloop.errors import DraftloopError, Forbidden, Unauthenticated, Unavailable
from orchestrator.batch.requests_file import BatchRequest

TOO_MANY = 429
NOT_THERE = (502, 503)  # the deployment, or who is behind the proxy that answers for it
REFUSALS: dict[int, type[DraftloopError]] = {401: Unauthenticated, 403: Forbidden}
PAUSE = wait_random_exponential(multiplier=1, max=30)


class _Later(Exception):
    """Nothing came of it now; `hopeful` where somebody who is there asked for patience."""

    def __init__(self, reason: str, *, after_s: float = 0, hopeful: bool = False) -> None:
        self.reason, self.after_s, self.hopeful = reason, after_s, hopeful
        super().__init__(reason)


class Asker:
    """For one event loop.

    Waits as long as the server asks for patience (429), and `patience_s` for one that does not
    answer at all: it may be on its way up.
    """

    def __init__(self, client: httpx.AsyncClient, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        self._silent_since: float | None = None

    async def require_server(self) -> None:
        """Raises Unavailable, Unauthenticated or Forbidden unless requests will be heard."""
        try:
            response = await self._client.get("/v1/models")
        except httpx.TransportError as error:
            raise Unavailable(f"no answer from {self._client.base_url}: {_said(error)}") from None
        if (refused := REFUSALS.get(response.status_code)) is not None:
            raise refused(complaint(_body(response)))

    async def answer(self, request: BatchRequest) -> dict[str, Any]:
        """The line of the answers' file. Raises Unavailable once nobody answers any more."""
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_Later), wait=_pause, stop=self._given_up, reraise=True
        )
        try:
            return await attempts(self._ask, request)
        except _Later as later:
            raise Unavailable(
                f"no answer from {self._client.base_url} for {self._patience_s:g} s: "
                f"{later.reason}; the same command goes on from here"
            ) from None

    def _given_up(self, state: RetryCallState) -> bool:
        if _later(state).hopeful:
            self._silent_since = None
            return False
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        return now - self._silent_since >= self._patience_s

    async def _ask(self, request: BatchRequest) -> dict[str, Any]:
        answer: dict[str, Any] = {"id": f"batch_req_{uuid.uuid4().hex}"}
        answer |= {"custom_id": request.custom_id, "response": None, "error": None}
        try:
            response = await self._client.post(
                request.url,
                content=json.dumps(request.body).encode(),
                headers={"content-type": "application/json"},
            )
        except httpx.ReadTimeout as error:  # what took so long once will do so again
            self._silent_since = None  # somebody took it
            return answer | {"error": {"code": "timeout", "message": _said(error)}}
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _Later(_said(error)) from None
        body = _body(response)
        if response.status_code in (TOO_MANY, *NOT_THERE):
            hopeful = response.status_code == TOO_MANY
            raise _Later(complaint(body), after_s=_retry_after(response), hopeful=hopeful)
        self._silent_since = None
        name = response.headers.get("x-request-id", "")
        said = {"status_code": response.status_code, "request_id": name, "body": body}
        return answer | {"response": said}


def _later(state: RetryCallState) -> _Later:
    """Why it did not come to an answer this time."""
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _Later)  # nothing else is tried again
    return error


def _pause(state: RetryCallState) -> float:
    return max(PAUSE(state), _later(state).after_s)


def _retry_after(response: httpx.Response) -> float:
    """Seconds; 0 where it says none, or a date."""
    said = response.headers.get("retry-after", "")
    return float(said) if said.isdecimal() else 0


def _body(response: httpx.Response) -> Any:
    """What was answered; what is no JSON, such as a proxy's page, as text."""
    try:
        return response.json()
    except ValueError:
        return response.text


def complaint(body: Any) -> str:
    """What an answer complains of, in its own words where they are where they belong."""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(body)


def _said(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__
