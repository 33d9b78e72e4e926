"""What every door has in common, gRPC and HTTP: a request is read, admitted, run and logged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from draftloop import logs, tracing
from draftloop.deadline import Deadline
from draftloop.request import GenerationParameters
from draftloop.tracing import Headers
from orchestrator.admission import RequestLimit
from orchestrator.deployment import Deployment
from orchestrator.loop import Generation
from orchestrator.metrics import counting_refusals
from orchestrator.requests import RequestReader

log = logs.get(__name__)


class Front:
    """The doors share one: their requests count against one limit."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._reader = RequestReader(deployment.settings, deployment.tokenizer)
        self._limit = RequestLimit(deployment.settings.max_requests)

    def generation(self, said: GenerationParameters, seconds: float | None) -> Generation:
        """What a client asks for, checked, to be run within so many seconds; None sets no limit.

        Raises InvalidInput for the first broken rule, Unavailable while no verifier is known.
        """
        with counting_refusals():
            request = self._reader.read(said, self.deployment.verifier)
            return self.deployment.generation(request, Deadline.after(seconds))

    @contextlib.contextmanager
    def serving(self, generation: Generation, headers: Headers = ()) -> Iterator[None]:
        """While it runs: counted, traced, and with one log line at its end, however it ends.

        `headers` of the call or HTTP request may name the trace that it is part of. Raises
        Overloaded where too many run. Enter it in the task that serves the request.
        """
        strategy = generation.request.strategy
        logs.bind_request(generation.request.request_id)
        with contextlib.ExitStack() as admitted:
            with counting_refusals():
                admitted.enter_context(self._limit.one_more())
            with tracing.span("request", headers, strategy=strategy) as span, _metered(generation):
                yield
                span.note(output_tokens=len(generation.output), rounds=generation.figures.rounds)


@contextlib.contextmanager
def _metered(generation: Generation) -> Iterator[None]:
    meter, request = generation.meter, generation.request
    problem: BaseException | None = None
    meter.began()
    try:
        yield
    except BaseException as error:
        problem = error
        raise
    finally:
        output = len(generation.output)
        outcome = meter.ended(generation.finish_reason, problem, len(request.prompt), output)
        log.info(
            "generated",
            request_id=request.request_id,
            strategy=request.strategy,
            outcome=outcome,
            prompt_tokens=len(request.prompt),
            output_tokens=output,
            tokens_per_round=round(generation.figures.tokens_per_round, 2),
            time_to_first_token_ms=round(generation.timings.time_to_first_token_ns / 1e6, 2),
        )
