"""What the gRPC and the HTTP server share: a request is read, admitted, run and logged."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator

from draftloop import logs, tracing
from draftloop.deadline import Deadline
from draftloop.errors import DeadlineExceeded
from draftloop.request import USUAL, GenerationParameters, TextForm
from draftloop.tracing import Headers
from orchestrator.access import Access, Caller
from orchestrator.admission import RequestLimit
from orchestrator.deployment import Deployment
from orchestrator.loop import Generation
from orchestrator.metrics import count_refused, counting_refusals
from orchestrator.requests import RequestReader
from orchestrator.shutdown import Shutdown

CLIENT_LEFT = (asyncio.CancelledError, GeneratorExit)

log = logs.get(__name__)


class Front:
    """Shared by both servers, so that their requests count against one limit."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._reader = RequestReader(deployment.settings, deployment.tokenizer, deployment.grammars)
        self._access = Access(deployment.settings.api_keys)
        self.shutdown = Shutdown()
        self._limit = RequestLimit(deployment.settings.max_requests)

    def caller(self, token: str | None) -> Caller:
        """The caller with this API key. Raises Unauthenticated if a valid key is needed."""
        with counting_refusals():
            return self._access.caller(token)

    async def generation(
        self,
        parameters: GenerationParameters,
        deadline: Deadline,
        caller: Caller,
        text_form: TextForm = USUAL,
    ) -> Generation:
        """Checks a client's request; returns the generation, ready to run until the deadline.

        Raises InvalidInput for the first broken rule, Forbidden for what the caller may not do,
        Unavailable while no verifier is known, and Overloaded if too many requests wait for their
        grammar to be tried. Await it within `preparing`: it may take long.
        """
        default_max_tokens = self.deployment.settings.default_token_limit(
            ends_itself=parameters.ends_itself
        )
        parameters = caller.apply_limits(parameters, default_max_tokens)
        request = await self._reader.read(parameters, self.deployment.verifier)
        request = dataclasses.replace(request, text_form=text_form)
        return self.deployment.generation(request, deadline)

    def count_requests(self, caller: Caller, count: int = 1) -> None:
        """Counts requests of a caller against the key's rate, before they are parsed.

        Requests that are refused later count too. Raises Overloaded beyond the rate.
        """
        with counting_refusals():
            caller.count_requests(count)

    @contextlib.contextmanager
    def admit(self, caller: Caller, count: int = 1) -> Iterator[None]:
        """A context in which `count` requests of a caller may run: all of them or none.

        Raises Overloaded if too many run.
        """
        with contextlib.ExitStack() as stack:
            with counting_refusals():
                stack.enter_context(self._limit.admit(count))
                stack.enter_context(caller.admit(count))
            yield

    @contextlib.contextmanager
    def serving(self, generation: Generation, headers: Headers, caller: Caller) -> Iterator[None]:
        """A context in which an admitted request runs: counted, traced, logged once at its end.

        `headers`: those of the gRPC call or HTTP request, which may name the trace that it belongs
        to. Enter it in the task that serves the request.
        """
        strategy = generation.request.strategy
        logs.bind_request(generation.request.request_id)
        metered = _meter_request(generation, caller.name)
        with tracing.span("request", headers, strategy=strategy) as span, metered:
            yield
            span.set_attributes(
                output_tokens=generation.output_length, rounds=generation.figures.rounds
            )


@contextlib.asynccontextmanager
async def preparing(deadline: Deadline) -> AsyncIterator[None]:
    """A context for everything awaited before a request runs; it counts refusals.

    Raises DeadlineExceeded once the deadline has passed.
    """
    try:
        with counting_refusals():
            async with deadline.enforced():
                yield
    except asyncio.CancelledError:
        if deadline.reached:  # gRPC noticed it before we did, and cancelled the call
            count_refused(DeadlineExceeded())
        raise


@contextlib.contextmanager
def _meter_request(generation: Generation, api_key: str) -> Iterator[None]:
    meter, request = generation.meter, generation.request
    failure: BaseException | None = None
    meter.record_start()
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        if isinstance(failure, CLIENT_LEFT) and generation.deadline.reached:
            failure = DeadlineExceeded()  # gRPC cancels the call, as when the client cancels
        output_length = generation.output_length
        outcome = meter.record_end(
            generation.finish_reason, failure, len(request.prompt), output_length
        )
        log.info(
            "generated",
            request_id=request.request_id,
            api_key=api_key,
            strategy=request.strategy,
            outcome=outcome,
            prompt_tokens=len(request.prompt),
            cached_prompt_tokens=generation.cached_prompt_tokens,
            output_tokens=output_length,
            tokens_per_round=round(generation.figures.tokens_per_round, 2),
            time_to_first_token_ms=round(generation.timings.time_to_first_token_ns / 1e6, 2),
        )
