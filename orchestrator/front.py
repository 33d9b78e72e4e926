"""What every door has in common, gRPC and HTTP: a request is read, admitted, run and logged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog

from draftloop import logs
from draftloop.deadline import Deadline
from draftloop.request import GenerationParameters
from orchestrator.access import Access, Caller
from orchestrator.admission import RequestLimit
from orchestrator.deployment import Deployment
from orchestrator.loop import Generation
from orchestrator.requests import RequestReader

log = logs.get(__name__)


class Front:
    """The doors share one: their requests count against one limit."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._reader = RequestReader(deployment.settings, deployment.tokenizer)
        self._access = Access(deployment.settings.api_keys)
        self._limit = RequestLimit(deployment.settings.max_requests)

    def caller(self, token: str | None) -> Caller:
        """Whose API key this is. Raises Unauthenticated where keys are needed and it is none."""
        return self._access.caller(token)

    def generation(
        self,
        said: GenerationParameters,
        seconds: float | None,
        caller: Caller | None = None,
    ) -> Generation:
        """What a client asks for, checked, to be run within so many seconds; None sets no limit.

        No `caller` is one without a key. Raises InvalidInput for the first broken rule, Forbidden
        for what the caller may not do, Unavailable while no verifier is known.
        """
        caller = caller or self.caller(None)
        said = caller.allowed(said, self.deployment.settings.default_max_tokens)
        request = self._reader.read(said, self.deployment.verifier)
        return self.deployment.generation(request, Deadline.after(seconds))

    @contextlib.contextmanager
    def serving(self, generation: Generation, caller: Caller | None = None) -> Iterator[None]:
        """While it runs; one log line at its end. Raises Overloaded where too many run."""
        caller = caller or self.caller(None)
        request = generation.request
        with caller.admitted(), self._limit.one_more():
            with structlog.contextvars.bound_contextvars(request_id=request.request_id):
                yield
            log.info(
                "generated",
                request_id=request.request_id,
                api_key=caller.name,
                strategy=request.strategy,
                prompt_tokens=len(request.prompt),
                output_tokens=len(generation.output),
                finish_reason=generation.finish_reason,
                tokens_per_round=round(generation.figures.tokens_per_round, 2),
            )
