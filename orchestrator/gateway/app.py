"""The HTTP routes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import Response

from draftloop import __version__, logs
from draftloop.deadline import Deadline
from draftloop.errors import DraftloopError, Unavailable
from draftloop.metrics import REGISTRY
from orchestrator.front import preparing
from orchestrator.gateway.answers import MESSAGES, JsonAnswer, refusal
from orchestrator.gateway.anthropic.body import MessagesBody
from orchestrator.gateway.envelope import (
    ANTHROPICS_REQUEST_ID_HEADER,
    CLIENT_CLOSED,
    REQUEST_ID_HEADER,
    BodyRefused,
    Envelope,
    deadline_of,
    with_connection_close,
)
from orchestrator.gateway.errors import ClientGone, Problem, body_problem, problem
from orchestrator.gateway.gateway import Gateway
from orchestrator.gateway.generating import Sampling
from orchestrator.gateway.head import HeadAsGet
from orchestrator.gateway.openapi import ANSWERS, ANTHROPIC_REFUSALS, REFUSALS
from orchestrator.gateway.page import add_playground
from orchestrator.gateway.responses.body import ResponseBody
from orchestrator.gateway.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from orchestrator.gateway.stream import EventStream, while_connected
from orchestrator.gateway.unread import UNREAD, read
from orchestrator.metrics import count_invalid

log = logs.get(__name__)


def build_app(gateway: Gateway, max_body_bytes: int) -> FastAPI:
    """The application, with its OpenAPI document at /openapi.json."""
    app = FastAPI(title="Draftloop", version=__version__, responses=REFUSALS, openapi_url=None)
    _add_generation(app, gateway)
    _add_models(app, gateway)
    _add_tokens(app, gateway)
    _add_operations(app, gateway)
    add_playground(app, gateway)
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(DraftloopError, _known_error)
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_exception_handler(HTTPException, _framework_error)
    # Inside the envelope and CORS. The framework would put it around them, so that a page of
    # another origin could not read the answer.
    app.add_middleware(ServerErrorMiddleware, handler=_internal_error)
    app.add_middleware(
        Envelope, max_body_bytes=max_body_bytes, require_host=gateway.hosts.require_own_host,
        require_caller=gateway.require_caller, deadline=gateway.deadline,
        shutdown=gateway.body_shutdown,
    )  # fmt: skip
    app.add_middleware(HeadAsGet)
    if origins := gateway.front.deployment.settings.allowed_origins:
        app.add_middleware(  # around the envelope: preflight requests carry no key
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, ANTHROPICS_REQUEST_ID_HEADER, "Retry-After"],
            **TO_PRIVATE_NETWORKS,
        )  # fmt: skip
    return app


# A page from a public address asks, with a header of its own, whether it may call a private one.
# Versions of starlette that know the header refuse unless this is set; the others ignore it.
_CORS_PARAMETERS = inspect.signature(CORSMiddleware).parameters
TO_PRIVATE_NETWORKS: dict[str, Any] = {
    name: True for name in ("allow_private_network",) if name in _CORS_PARAMETERS
}


def _add_generation(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/v1/completions", response_class=JsonAnswer, responses=ANSWERS["completion"])
    async def completions(body: Annotated[CompletionBody, UNREAD], request: Request) -> Response:
        """Continue one or more prompts."""
        return await _generate(CompletionBody, body, request, gateway.completion)

    @app.post("/v1/chat/completions", response_class=JsonAnswer, responses=ANSWERS["chat"])
    async def chat_completions(body: Annotated[ChatBody, UNREAD], request: Request) -> Response:
        """Continue a chat, rendered with the model's chat template."""
        return await _generate(ChatBody, body, request, gateway.chat)

    @app.post("/v1/responses", response_class=JsonAnswer, responses=ANSWERS["response"])
    async def responses(body: Annotated[ResponseBody, UNREAD], request: Request) -> Response:
        """Answer a conversation: OpenAI's Responses API."""
        return await _generate(ResponseBody, body, request, gateway.response)

    @app.post(MESSAGES, response_class=JsonAnswer, responses=ANSWERS["message"])
    async def messages(body: Annotated[MessagesBody, UNREAD], request: Request) -> Response:
        """Answer a conversation: Anthropic's Messages API."""
        return await _generate(MessagesBody, body, request, gateway.message)


AnyBody = TypeVar("AnyBody", bound=Sampling)


class AnswerWriter(Protocol):
    """Writes an answer, as a whole or as a stream."""

    def whole(self) -> Coroutine[Any, Any, dict[str, Any]]: ...

    def events(self) -> AsyncGenerator[bytes, None]: ...

    def error_event(self, error: Exception) -> bytes: ...


async def _generate(
    kind: type[AnyBody],
    body: AnyBody,
    request: Request,
    start: Callable[[AnyBody, Mapping[str, str], Deadline], Awaitable[AnswerWriter]],
) -> Response:
    """Answers a body of that kind, as a whole or as a stream. `start` starts the answer's work."""
    parsed = await read(kind, body, request)
    deadline = deadline_of(request)
    async with preparing(deadline):
        answer = await start(parsed, request.headers, deadline)
    if parsed.stream:
        return EventStream(answer.events(), answer.error_event)
    return JsonAnswer(await while_connected(request.receive, answer.whole()))


def _add_models(app: FastAPI, gateway: Gateway) -> None:
    def model(name: str) -> dict[str, Any]:
        """The entry of a model: OpenAI's and vLLM's fields, followed by Anthropic's."""
        info = gateway.front.deployment.verifier
        created = datetime.fromtimestamp(gateway.started, UTC)
        return {
            "id": name,
            "object": "model",
            "created": gateway.started,
            "owned_by": "draftloop",
            "root": info.model_name,
            "parent": None,
            "max_model_len": info.context_length,
            "type": "model",
            "display_name": name,
            "created_at": created.isoformat().replace("+00:00", "Z"),
        }

    @app.get("/v1/models", response_class=JsonAnswer)
    async def models() -> Response:
        """List the one model that is served, under each of its names."""
        names = gateway.model_names
        ends = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        return JsonAnswer({"object": "list", "data": [model(name) for name in names], **ends})

    @app.get("/v1/models/{name:path}", response_class=JsonAnswer)
    async def one_model(name: str) -> Response:
        """The model of that name."""
        if not name:
            return await models()
        gateway.require_model(name)
        return JsonAnswer(model(name))


def _add_tokens(app: FastAPI, gateway: Gateway) -> None:
    tokenizer = gateway.front.deployment.tokenizer

    @app.post("/tokenize", response_class=JsonAnswer)
    async def tokenize(body: Annotated[TokenizeBody, UNREAD], request: Request) -> Response:
        """Token ids of a text, or of the prompt that a chat is rendered to."""
        parsed = await read(TokenizeBody, body, request)
        async with preparing(deadline_of(request)):
            token_ids = await gateway.tokens(parsed, request.headers)
            strings = await tokenizer.token_texts(token_ids) if parsed.return_token_strs else None
        return JsonAnswer(
            {
                "count": len(token_ids),
                "max_model_len": gateway.front.deployment.verifier.context_length,
                "tokens": token_ids,
                "token_strs": strings,
            }
        )

    @app.post(f"{MESSAGES}/count_tokens", response_class=JsonAnswer, responses=ANTHROPIC_REFUSALS)
    async def count_tokens(body: Annotated[MessagesBody, UNREAD], request: Request) -> Response:
        """Number of tokens of the prompt that the messages are rendered to."""
        parsed = await read(MessagesBody, body, request)
        async with preparing(deadline_of(request)):
            tokens = await gateway.count_tokens(parsed, request.headers)
        return JsonAnswer({"input_tokens": tokens})

    @app.post("/v1/responses/input_tokens", response_class=JsonAnswer)
    async def input_tokens(body: Annotated[ResponseBody, UNREAD], request: Request) -> Response:
        """Number of tokens of the prompt that the input is rendered to."""
        parsed = await read(ResponseBody, body, request)
        async with preparing(deadline_of(request)):
            tokens = await gateway.count_tokens(parsed, request.headers)
        return JsonAnswer({"object": "response.input_tokens", "input_tokens": tokens})

    @app.post("/detokenize", response_class=JsonAnswer)
    async def detokenize(body: Annotated[DetokenizeBody, UNREAD], request: Request) -> Response:
        """The text of token ids, without special tokens."""
        parsed = await read(DetokenizeBody, body, request)
        async with preparing(deadline_of(request)):
            text = await gateway.text(parsed, request.headers)
        return JsonAnswer({"prompt": text})


def _add_operations(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/health", response_class=JsonAnswer)
    async def health() -> Response:
        """Liveness: the process is running."""
        return JsonAnswer({"status": "ok"})

    @app.get("/ready", response_class=JsonAnswer)
    async def ready() -> Response:
        """Readiness: requests are accepted. Not before a verifier is found, nor while draining."""
        if not gateway.ready or not gateway.front.deployment.ready:
            raise Unavailable("the server is not ready, or is about to stop")
        return JsonAnswer({"status": "ready"})

    @app.get("/version", response_class=JsonAnswer)
    async def version() -> Response:
        """The server's version."""
        return JsonAnswer({"version": __version__})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Metrics of this process in Prometheus's text format."""
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        """The OpenAPI document, made once, in a thread: the framework takes 0.3 seconds for it."""
        return JsonAnswer(await asyncio.to_thread(app.openapi))


async def _invalid_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    count_invalid()
    return refusal(body_problem(error.errors()), request.url.path)


async def _known_error(request: Request, error: Exception) -> Response:
    return refusal(problem(error), request.url.path)


async def _client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)


async def _framework_error(request: Request, error: Exception) -> Response:
    """Errors of the framework itself: unknown routes and methods, bodies that are not text."""
    assert isinstance(error, HTTPException)
    if isinstance(error, BodyRefused):
        return with_connection_close(refusal(error.problem, request.url.path))
    if error.status_code == 400:
        count_invalid()
    route = f"{request.method} {request.url.path}"
    known_errors = {
        400: (
            "body: must be JSON in UTF-8, not too deep, its numbers not too long",
            "invalid_json",
        ),
        404: (f"{route}: there is no such route", "unknown_url"),
        405: (f"{route}: the route does not take this method", "method_not_allowed"),
    }
    message, code = known_errors.get(error.status_code, (error.detail, None))
    headers = error.headers or {}
    shown_error = Problem(status=error.status_code, message=message, code=code, headers=headers)
    return refusal(shown_error, request.url.path)


async def _internal_error(request: Request, error: Exception) -> Response:
    log.error("unforeseen error", exc_info=error)
    return refusal(problem(error), request.url.path)
