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

TOO_MANY_REQUESTS = 429
UNAVAILABLE_STATUSES = (502, 503)  # said by the deployment, or by a proxy in front of it
REFUSAL_ERRORS: dict[int, type[DraftloopError]] = {401: Unauthenticated, 403: Forbidden}
PAUSE = wait_random_exponential(multiplier=1, max=30)


class _RetryLater(Exception):
    """The request should be retried later. `is_throttled`: the server itself asked to wait."""

    def __init__(
        self, answer: dict[str, Any], reason: str, *, after_s: float = 0, is_throttled: bool = False
    ) -> None:
        """`answer` is the line of the answers' file if no retry gives another one."""
        self.answer, self.reason, self.after_s, self.is_throttled = (
            answer,
            reason,
            after_s,
            is_throttled,
        )
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
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise Unavailable(
                f"no answer from {self._client.base_url}: {_error_text(error)}"
            ) from None
        if (refusal := REFUSAL_ERRORS.get(response.status_code)) is not None:
            raise refusal(error_message(_body(response)))
        if response.has_redirect_location:
            rule = (
                f"must be the address that answers; it sends on to {response.headers['location']}"
            )
            raise InvalidInput("server", rule, str(self._client.base_url))

    async def answer(self, request: BatchRequest) -> dict[str, Any]:
        """The request's line of the answers' file. Raises Unavailable if the server is gone."""
        while True:
            try:
                return await self._ask_with_retries(request)
            except _RetryLater as later:
                if await self._is_ready():  # only this request is not answered
                    return later.answer
                if self._silence_s() >= self._patience_s:
                    raise Unavailable(
                        f"no answer from {self._client.base_url} for {self._patience_s:g} s: "
                        f"{later.reason}; the same command goes on from here"
                    ) from None

    async def _ask_with_retries(self, request: BatchRequest) -> dict[str, Any]:
        """Asks until there is an answer. Raises _RetryLater if none comes within `patience_s`."""
        silent_since: float | None = None

        def given_up(state: RetryCallState) -> bool:
            nonlocal silent_since
            if _last_error(state).is_throttled:
                silent_since = self._silent_since = None
                return False
            now = time.monotonic()
            silent_since = silent_since or now
            self._silent_since = self._silent_since or now
            return now - silent_since >= self._patience_s

        def seconds_to_wait(state: RetryCallState) -> float:
            pause, error, now = PAUSE(state), _last_error(state), time.monotonic()
            patience_left = self._patience_s - (now - (silent_since or now))
            after_s = error.after_s if error.is_throttled else min(error.after_s, patience_left)
            return max(pause, after_s)

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_RetryLater),
            wait=seconds_to_wait,
            stop=given_up,
            reraise=True,
        )
        return await retrying(self._ask, request)

    def _silence_s(self) -> float:
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
            return answer | {"error": {"code": "timeout", "message": _error_text(error)}}
        except (httpx.TransportError, httpx.DecodingError) as error:
            message = _error_text(error)
            raise _RetryLater(
                answer | {"error": {"code": "no_answer", "message": message}}, message
            ) from None
        body = _body(response)
        request_id = response.headers.get("x-request-id", "")
        response_fields = {
            "status_code": response.status_code,
            "request_id": request_id,
            "body": body,
        }
        answer |= {"response": response_fields}
        if response.status_code in (TOO_MANY_REQUESTS, *UNAVAILABLE_STATUSES):
            is_throttled = response.status_code == TOO_MANY_REQUESTS
            raise _RetryLater(
                answer,
                error_message(body),
                after_s=_retry_after(response),
                is_throttled=is_throttled,
            )
        self._silent_since = None
        return answer


def _last_error(state: RetryCallState) -> _RetryLater:
    """The error of the last attempt."""
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _RetryLater)  # nothing else is retried
    return error


def _retry_after(response: httpx.Response) -> float:
    """Seconds to wait, as the server says; 0 if it says nothing, or a date."""
    header = response.headers.get("retry-after", "")
    return float(header) if header.isdecimal() else 0


def _body(response: httpx.Response) -> Any:
    """The answer's JSON; if it is not JSON, such as a proxy's page, its text."""
    try:
        return response.json()
    except ValueError:
        return response.text


def error_message(body: Any) -> str:
    """The error message in an answer's body; all of the body if it has none in the usual place."""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(body)


def _error_text(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__
