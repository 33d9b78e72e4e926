"""Turns HTTP requests into work for the front: prompts, models, credentials, deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from draftloop import __version__
from draftloop.deadline import Deadline
from draftloop.errors import InvalidInput, Unavailable
from draftloop.request import GenerationParameters, SamplingParameters, check_token_counts
from orchestrator.access import Caller
from orchestrator.front import Front
from orchestrator.gateway.anthropic.answer import MessageAnswer
from orchestrator.gateway.anthropic.body import MessagesBody
from orchestrator.gateway.anthropic.names import own_names as messages_names
from orchestrator.gateway.caller import caller_of, tenant_of
from orchestrator.gateway.chat_reader import PLAIN, Reading
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.errors import UnknownModel
from orchestrator.gateway.form_field import with_form_field
from orchestrator.gateway.formats import ChatFormat, CompletionFormat
from orchestrator.gateway.generating import Generating
from orchestrator.gateway.hosts import Hosts
from orchestrator.gateway.parameters import echoed_logprobs, parameters, seed_of
from orchestrator.gateway.prompt_logprobs import PromptLogprobsAnswer
from orchestrator.gateway.prompts import Prompt, Prompts, count_prompts
from orchestrator.gateway.readings import Readings
from orchestrator.gateway.responses.answer import ResponseAnswer
from orchestrator.gateway.responses.body import ResponseBody
from orchestrator.gateway.responses.names import own_names as responses_names
from orchestrator.gateway.sampling_defaults import OPENAI
from orchestrator.gateway.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from orchestrator.gateway.structure import grammar_of
from orchestrator.gateway.work import Form, Work
from orchestrator.loop import Generation
from orchestrator.metrics import counting_refusals
from orchestrator.shutdown import Shutdown

TIMEOUT_HEADER = "x-request-timeout"


class Gateway:
    """What the routes share. `ready` is false before requests are accepted, and while draining."""

    def __init__(
        self, front: Front, template: ChatTemplate, defaults: SamplingParameters = OPENAI
    ) -> None:
        self.front = front
        self.ready = False
        self.started = int(time.time())
        self.body_shutdown = Shutdown()  # of bodies: ends when requests are no longer accepted
        self.hosts = Hosts(front.deployment.settings)
        self._prompts = Prompts(front.deployment, template)
        self._readings = Readings(front.deployment, template)
        self._defaults = defaults
        self._settings = front.deployment.settings

    @property
    def model_names(self) -> list[str]:
        """All names of the served model. Raises Unavailable while no verifier is known."""
        return self._settings.served_model_names or [self.front.deployment.verifier.model_name]

    @property
    def model_name(self) -> str:
        """The model's name in answers. Raises Unavailable while no verifier is known."""
        return self.model_names[0]

    def require_model(self, name: str | None) -> None:
        """Raises UnknownModel unless `name` is one of the served model, or None."""
        if name is not None and name not in (names := self.model_names):
            raise UnknownModel("model", f"must be {' or '.join(map(repr, names))}", name)

    def require_caller(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthenticated if keys are required and the request has none that is known."""
        caller_of(self.front, headers)

    def deadline(self, headers: Mapping[str, str]) -> Deadline:
        """The deadline of a request that arrives now, for all that it asks for.

        It is the client's time limit, at most the server's. Raises InvalidInput.
        """
        max_seconds = self._settings.http_request_timeout_s
        header = headers.get(TIMEOUT_HEADER)
        if header is None:
            return Deadline.after(max_seconds)
        try:
            seconds = float(header)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:  # NaN included
            with counting_refusals():
                raise InvalidInput(TIMEOUT_HEADER, "must be a number of seconds above 0", header)
        return Deadline.after(min(seconds, max_seconds))

    async def completion(
        self, body: CompletionBody, headers: Mapping[str, str], deadline: Deadline
    ) -> Work[CompletionFormat]:
        """A text completion. Raises InvalidInput, UnknownModel, Unavailable."""
        caller = self._check_request(body, count_prompts(body), headers)
        prompts = await self._prompts.of_completion(body)
        choices = body.n or 1
        echoes = [prompt.text if body.echo else "" for prompt in prompts for _ in range(choices)]
        form = CompletionFormat(echoes)
        return await self._work(body, prompts, caller, deadline, headers, form)

    async def chat(
        self, body: ChatBody, headers: Mapping[str, str], deadline: Deadline
    ) -> Work[ChatFormat]:
        """A chat completion. Raises InvalidInput, UnknownModel, Unavailable."""
        caller = self._check_request(body, 1, headers)
        prompt = await self._prompts.of_chat(body)
        reading = self._readings.of(body, prompt.text)
        form = ChatFormat(reading)
        return await self._work(body, [prompt], caller, deadline, headers, form, reading)

    async def response(
        self, body: ResponseBody, headers: Mapping[str, str], deadline: Deadline
    ) -> ResponseAnswer:
        """An answer of the Responses API. Raises InvalidInput, UnknownModel, Unavailable."""
        with responses_names():
            return ResponseAnswer(await self.chat(body.chat, headers, deadline), body)

    async def message(
        self, body: MessagesBody, headers: Mapping[str, str], deadline: Deadline
    ) -> MessageAnswer:
        """An answer of the Messages API. Raises InvalidInput, UnknownModel, Unavailable."""
        with messages_names():
            return MessageAnswer(await self.chat(body.chat, headers, deadline))

    async def count_tokens(
        self, body: MessagesBody | ResponseBody, headers: Mapping[str, str]
    ) -> int:
        """Number of tokens of the body's prompt, whether or not the context has room for it."""
        self.require_model(body.model)
        self.front.count_requests(caller_of(self.front, headers))
        with responses_names() if isinstance(body, ResponseBody) else messages_names():
            return len(await self._prompts.tokens(body.chat))

    async def tokens(self, body: TokenizeBody, headers: Mapping[str, str]) -> list[int]:
        """Token ids of a text or of a chat's prompt."""
        self.require_model(body.model)
        self.front.count_requests(caller_of(self.front, headers))
        return await self._prompts.tokens(body)

    async def text(self, body: DetokenizeBody, headers: Mapping[str, str]) -> str:
        """The text of token ids."""
        self.require_model(body.model)
        self.front.count_requests(caller_of(self.front, headers))
        return await self._prompts.text(body)

    def _check_request(self, body: Generating, prompts: int, headers: Mapping[str, str]) -> Caller:
        """The caller, once the request has been checked as far as possible without its prompt.

        Its choices are counted for the key's rate. More choices than may ever run at once are
        refused, since they would never be admitted.
        """
        if not self.ready:
            raise Unavailable("the server is not ready, or is about to stop")
        self.require_model(body.model)
        caller = caller_of(self.front, headers)
        limit = min(
            self._settings.max_requests, caller.max_concurrent or self._settings.max_requests
        )
        if prompts > limit:
            raise InvalidInput("prompt", f"must have at most {limit} entries", f"{prompts} entries")
        if prompts * (body.n or 1) > limit:
            raise InvalidInput("n", f"must be at most {limit // prompts} here", body.n)
        self.front.count_requests(caller, prompts * (body.n or 1))
        check_token_counts(  # before each choice gets a copy
            self.front.deployment.verifier.vocabulary_size,
            logit_bias=body.logit_bias,
            stop_token_ids=body.stop_token_ids,
            allowed_token_ids=body.allowed_token_ids,
        )
        return caller

    async def _work(
        self,
        body: Generating,
        prompts: list[Prompt],
        caller: Caller,
        deadline: Deadline,
        headers: Mapping[str, str],
        form: Form,
        reading: Reading = PLAIN,
    ) -> Work[Form]:
        info = self.front.deployment.verifier
        tenant, grammar = tenant_of(headers), reading.grammar(grammar_of(body))
        generations = []
        for prompt in prompts:
            seed = seed_of(body)  # one per prompt: equal prompts need not have equal answers
            for choice_parameters in parameters(
                body, prompt.token_ids, tenant, seed, grammar, self._defaults
            ):
                generations.append(
                    await self._generation(body, choice_parameters, deadline, caller, reading)
                )
                await asyncio.sleep(0)  # many choices must not hold up other requests
        options = body.stream_options
        return Work(
            front=self.front,
            model=self.model_name,
            fingerprint=f"draftloop-{__version__}-{info.model_fingerprint}",
            generations=generations,
            prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
            choices=body.n or 1,
            form=form,
            form_field=body.form_field,
            headers=tuple(headers.items()),
            caller=caller,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            traced=bool(body.stream and body.speculative and body.speculative.trace),
            returns_token_ids=bool(body.return_token_ids),
            prompt_answer=PromptLogprobsAnswer(echoed_logprobs(body), body.prompt_logprobs),
            prompt_only=body.prompt_only,
        )

    async def _generation(
        self,
        body: Generating,
        choice_parameters: GenerationParameters,
        deadline: Deadline,
        caller: Caller,
        reading: Reading,
    ) -> Generation:
        """The generation of one choice. Raises InvalidInput with the client's field names."""
        try:
            return await self.front.generation(
                choice_parameters, deadline, caller, self._readings.text_form(body, reading)
            )
        except InvalidInput as error:
            if error.field == "max_tokens" and body.max_completion_tokens is not None:
                raise InvalidInput.from_description(
                    "max_completion_tokens", error.description
                ) from None
            error = await self._more_specific_error(error, body, reading)
            raise with_form_field(error, body.form_field) from None

    async def _more_specific_error(
        self, error: InvalidInput, body: Generating, reading: Reading
    ) -> InvalidInput:
        """The error of the form that is wrong, if the grammar combines several forms.

        It shows what the client wrote, while the combined grammar's error does not.
        """
        if not (reading.schemas and error.field.startswith("grammar")):
            return error
        parts = [("tools", schema) for schema in reading.schemas]
        if (form := grammar_of(body)) is not None:
            parts.insert(0, (body.form_field or "", form))
        deployment = self.front.deployment
        for field, part in parts:
            try:
                await deployment.grammars.require(part, deployment.verifier)
            except InvalidInput as specific:
                return with_form_field(specific, field)
        return error
