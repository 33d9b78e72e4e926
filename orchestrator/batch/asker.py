"""Sends requests to a deployment's HTTP API, and retries where that may help."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from draftloop.errors import DraftloopError, Forbidden, InvalidInput, Unauthenticated, Unavailable
from orchestrator.batch.requests_file import BatchRequest

TOO_MANY = 429
NOT_THERE = (502, 503)  # said by the deployment, or by a proxy in front of it
REFUSALS: dict[int, type[DraftloopError]] = {401: Unauthenticated, 403: Forbidden}
PAUSE = wait_random_exponential(multiplier=1, max=30)


class _Later(Exception):
    """The request should be retried later. `hopeful`: the server is there and asked to wait."""

    def __init__(
        self, answer: dict[str, Any], reason: str, *, after_s: float = 0, hopeful: bool = False
    ) -> None:
        """`answer` is the line of the answers' file if no retry gives another one."""
        self.answer, self.reason, self.after_s, self.hopeful = answer, reason, after_s, hopeful
        super().__init__(reason)


class Asker:
    """Sends requests, with retries. For use in one event loop.

    Waits as long as the server asks it to (429), and `patience_s` for a server that does not answer
    at all, since it may be starting. If by then only this request is not answered, it has failed.
    """

    def __init__(self, client: httpx.AsyncClient, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        self._silent_since: float | None = None

    async def require_server(self) -> None:
        """Checks that the server takes requests from this client.

        Raises Unavailable, Unauthenticated or Forbidden, or InvalidInput for a wrong address.
        """
        try:
            response = await self._client.get("/v1/models")
        except httpx.TransportError as error:
            raise Unavailable(f"no answer from {self._client.base_url}: {_said(error)}") from None
        if (refused := REFUSALS.get(response.status_code)) is not None:
            raise refused(complaint(_body(response)))
        if response.has_redirect_location:
            rule = (
                f"must be the address that answers; it sends on to {response.headers['location']}"
            )
            raise InvalidInput("server", rule, str(self._client.base_url))

    async def answer(self, request: BatchRequest) -> dict[str, Any]:
        """The request's line of the answers' file. Raises Unavailable if the server is gone."""
        while True:
            try:
                return await self._asked_again(request)
            except _Later as later:
                if await self._is_ready():  # only this request is not answered
                    return later.answer
                if self._silent_s() >= self._patience_s:
                    raise Unavailable(
                        f"no answer from {self._client.base_url} for {self._patience_s:g} s: "
                        f"{later.reason}; the same command goes on from here"
                    ) from None

    async def _asked_again(self, request: BatchRequest) -> dict[str, Any]:
        """Asks until there is an answer. Raises _Later if there is none within `patience_s`."""
        since: float | None = None

        def given_up(state: RetryCallState) -> bool:
            nonlocal since
            if _later(state).hopeful:
                since = self._silent_since = None
                return False
            now = time.monotonic()
            since = since or now
            self._silent_since = self._silent_since or now
            return now - since >= self._patience_s

        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_Later), wait=_pause, stop=given_up, reraise=True
        )
        return await attempts(self._ask, request)

    def _silent_s(self) -> float:
        """Seconds for which no request has been answered."""
        return time.monotonic() - self._silent_since if self._silent_since is not None else 0.0

    async def _is_ready(self) -> bool:
        """Whether the server says that it accepts requests."""
        try:
            return (await self._client.get("/ready")).is_success
        except (httpx.TransportError, httpx.DecodingError):
            return False

    async def _ask(self, request: BatchRequest) -> dict[str, Any]:
        answer: dict[str, Any] = {"id": f"batch_req_{uuid.uuid4().hex}"}
        answer |= {"custom_id": request.custom_id, "response": None, "error": None}
        try:
            response = await self._client.post(
                request.url,
                content=json.dumps(request.body).encode(),
                headers={"content-type": "application/json"},
            )
        except httpx.ReadTimeout as error:  # no retry: it would take as long again
            self._silent_since = None  # the server took it
            return answer | {"error": {"code": "timeout", "message": _said(error)}}
        except (httpx.TransportError, httpx.DecodingError) as error:
            said = _said(error)
            raise _Later(answer | {"error": {"code": "no_answer", "message": said}}, said) from None
        body = _body(response)
        name = response.headers.get("x-request-id", "")
        told = {"status_code": response.status_code, "request_id": name, "body": body}
        answer |= {"response": told}
        if response.status_code in (TOO_MANY, *NOT_THERE):
            hopeful = response.status_code == TOO_MANY
            raise _Later(answer, complaint(body), after_s=_retry_after(response), hopeful=hopeful)
        self._silent_since = None
        return answer


def _later(state: RetryCallState) -> _Later:
    """The error of the last attempt."""
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _Later)  # nothing else is retried
    return error


def _pause(state: RetryCallState) -> float:
    return max(PAUSE(state), _later(state).after_s)


def _retry_after(response: httpx.Response) -> float:
    """Seconds to wait, as the server says; 0 if it says nothing, or a date."""
    said = response.headers.get("retry-after", "")
    return float(said) if said.isdecimal() else 0


def _body(response: httpx.Response) -> Any:
    """The answer's JSON; if it is not JSON, such as a proxy's page, its text."""
    try:
        return response.json()
    except ValueError:
        return response.text


def complaint(body: Any) -> str:
    """The error message in an answer's body; all of the body if it has none in the usual place."""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(body)


def _said(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__
