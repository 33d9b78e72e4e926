"""Turns HTTP requests into work for the front: prompts, models, credentials, deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from draftloop import __version__
from draftloop.deadline import Deadline
from draftloop.errors import InvalidInput, Unavailable
from draftloop.request import GenerationParameters, SamplingParameters, check_token_count
from orchestrator.access import Caller
from orchestrator.ending import Shutdown
from orchestrator.front import Front
from orchestrator.gateway.anthropic.answer import MessageAnswer
from orchestrator.gateway.anthropic.body import MessagesBody
from orchestrator.gateway.anthropic.names import own_names as messages_names
from orchestrator.gateway.caller import caller_of, tenant_of
from orchestrator.gateway.chat_reader import PLAIN, Reading
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.errors import UnknownModel
from orchestrator.gateway.form_field import by_form_field
from orchestrator.gateway.formats import ChatFormat, CompletionFormat
from orchestrator.gateway.generating import Generating
from orchestrator.gateway.hosts import Hosts
from orchestrator.gateway.parameters import echoed_logprobs, parameters, seed_of
from orchestrator.gateway.prompt_logprobs import PromptAnswer
from orchestrator.gateway.prompts import Prompt, Prompts, count
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

TIMEOUT_HEADER = "x-request-timeout"
OF_TOKENS = ("logit_bias", "stop_token_ids", "allowed_token_ids")  # fields with token ids


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
        most = self._settings.http_request_timeout_s
        said = headers.get(TIMEOUT_HEADER)
        if said is None:
            return Deadline.after(most)
        try:
            seconds = float(said)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:  # NaN included
            with counting_refusals():
                raise InvalidInput(TIMEOUT_HEADER, "must be a number of seconds above 0", said)
        return Deadline.after(min(seconds, most))

    async def completion(
        self, said: CompletionBody, headers: Mapping[str, str], deadline: Deadline
    ) -> Work[CompletionFormat]:
        """A text completion. Raises InvalidInput, UnknownModel, Unavailable."""
        caller = self._welcome(said, count(said), headers)
        prompts = await self._prompts.of_completion(said)
        choices = said.n or 1
        echoes = [prompt.text if said.echo else "" for prompt in prompts for _ in range(choices)]
        form = CompletionFormat(echoes)
        return await self._work(said, prompts, caller, deadline, headers, form)

    async def chat(
        self, said: ChatBody, headers: Mapping[str, str], deadline: Deadline
    ) -> Work[ChatFormat]:
        """A chat completion. Raises InvalidInput, UnknownModel, Unavailable."""
        caller = self._welcome(said, 1, headers)
        prompt = await self._prompts.of_chat(said)
        reading = self._readings.of(said, prompt.text)
        form = ChatFormat(reading)
        return await self._work(said, [prompt], caller, deadline, headers, form, reading)

    async def response(
        self, said: ResponseBody, headers: Mapping[str, str], deadline: Deadline
    ) -> ResponseAnswer:
        """An answer of the Responses API. Raises InvalidInput, UnknownModel, Unavailable."""
        with responses_names():
            return ResponseAnswer(await self.chat(said.chat, headers, deadline), said)

    async def message(
        self, said: MessagesBody, headers: Mapping[str, str], deadline: Deadline
    ) -> MessageAnswer:
        """An answer of the Messages API. Raises InvalidInput, UnknownModel, Unavailable."""
        with messages_names():
            return MessageAnswer(await self.chat(said.chat, headers, deadline))

    async def count_tokens(
        self, said: MessagesBody | ResponseBody, headers: Mapping[str, str]
    ) -> int:
        """Number of tokens of the body's prompt, whether or not the context has room for it."""
        self.require_model(said.model)
        self.front.begin(caller_of(self.front, headers))
        with responses_names() if isinstance(said, ResponseBody) else messages_names():
            return len(await self._prompts.tokens(said.chat))

    async def tokens(self, said: TokenizeBody, headers: Mapping[str, str]) -> list[int]:
        """Token ids of a text or of a chat's prompt."""
        self.require_model(said.model)
        self.front.begin(caller_of(self.front, headers))
        return await self._prompts.tokens(said)

    async def text(self, said: DetokenizeBody, headers: Mapping[str, str]) -> str:
        """The text of token ids."""
        self.require_model(said.model)
        self.front.begin(caller_of(self.front, headers))
        return await self._prompts.text(said)

    def _welcome(self, said: Generating, prompts: int, headers: Mapping[str, str]) -> Caller:
        """The caller, once the request has been checked as far as possible without its prompt.

        Its choices are counted for the key's rate. More choices than may ever run at once are
        refused, since they would never be admitted.
        """
        if not self.ready:
            raise Unavailable("the server is not ready, or is about to stop")
        self.require_model(said.model)
        caller = caller_of(self.front, headers)
        most = min(
            self._settings.max_requests, caller.max_concurrent or self._settings.max_requests
        )
        if prompts > most:
            raise InvalidInput("prompt", f"must have at most {most} entries", f"{prompts} entries")
        if prompts * (said.n or 1) > most:
            raise InvalidInput("n", f"must be at most {most // prompts} here", said.n)
        self.front.begin(caller, prompts * (said.n or 1))
        size = self.front.deployment.verifier.vocabulary_size
        for name in OF_TOKENS:  # before each choice gets a copy
            check_token_count(name, len(getattr(said, name) or ()), size)
        return caller

    async def _work(
        self,
        said: Generating,
        prompts: list[Prompt],
        caller: Caller,
        deadline: Deadline,
        headers: Mapping[str, str],
        form: Form,
        reading: Reading = PLAIN,
    ) -> Work[Form]:
        info = self.front.deployment.verifier
        tenant, grammar = tenant_of(headers), reading.grammar(grammar_of(said))
        generations = []
        for prompt in prompts:
            seed = seed_of(said)  # one per prompt: equal prompts need not have equal answers
            for one in parameters(said, prompt.token_ids, tenant, seed, grammar, self._defaults):
                generations.append(await self._generation(said, one, deadline, caller, reading))
                await asyncio.sleep(0)  # many choices must not hold up other requests
        options = said.stream_options
        return Work(
            front=self.front,
            model=self.model_name,
            fingerprint=f"draftloop-{__version__}-{info.model_fingerprint}",
            generations=generations,
            prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
            choices=said.n or 1,
            form=form,
            form_field=said.form_field,
            headers=tuple(headers.items()),
            caller=caller,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            traced=bool(said.stream and said.speculative and said.speculative.trace),
            tells_token_ids=bool(said.return_token_ids),
            of_prompts=PromptAnswer(echoed_logprobs(said), said.prompt_logprobs),
            prompt_alone=said.prompt_alone,
        )

    async def _generation(
        self,
        said: Generating,
        one: GenerationParameters,
        deadline: Deadline,
        caller: Caller,
        reading: Reading,
    ) -> Generation:
        """The generation of one choice. Raises InvalidInput with the client's field names."""
        try:
            return await self.front.generation(
                one, deadline, caller, self._readings.text_form(said, reading)
            )
        except InvalidInput as error:
            if error.field == "max_tokens" and said.max_completion_tokens is not None:
                raise InvalidInput.passed_on("max_completion_tokens", error.description) from None
            error = await self._nearer(error, said, reading)
            raise by_form_field(error, said.form_field) from None

    async def _nearer(
        self, error: InvalidInput, said: Generating, reading: Reading
    ) -> InvalidInput:
        """The error of the form that is wrong, if the grammar combines several forms.

        It shows what the client wrote, while the combined grammar's error does not.
        """
        if not (reading.schemas and error.field.startswith("grammar")):
            return error
        parts = [("tools", schema) for schema in reading.schemas]
        if (form := grammar_of(said)) is not None:
            parts.insert(0, (said.form_field or "", form))
        deployment = self.front.deployment
        for field, part in parts:
            try:
                await deployment.grammars.require(part, deployment.verifier)
            except InvalidInput as its_own:
                return by_form_field(its_own, field)
        return error
