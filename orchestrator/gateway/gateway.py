"""From what HTTP clients send to work for the front: prompts, models, credentials, deadlines."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass

from draftloop import __version__
from draftloop.errors import InvalidInput, Unavailable
from draftloop.request import (
    GenerationParameters,
    SamplingParameters,
    check_length,
    check_token_ids,
)
from orchestrator.access import Caller
from orchestrator.front import Front
from orchestrator.gateway.caller import caller_of, tenant_of
from orchestrator.gateway.chat_reader import PLAIN, Reading
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.errors import ContextExceeded, UnknownModel, Unsupported
from orchestrator.gateway.form_field import by_form_field
from orchestrator.gateway.formats import AnswerFormat, ChatFormat, CompletionFormat
from orchestrator.gateway.messages import for_template
from orchestrator.gateway.parameters import parameters, seed_of
from orchestrator.gateway.reasoning import marks
from orchestrator.gateway.reasoning.marks import MARKS, Marks
from orchestrator.gateway.reasoning.thought import Thought, thought_after
from orchestrator.gateway.runs import Ending
from orchestrator.gateway.sampling_defaults import OPENAI
from orchestrator.gateway.schemas import ChatBody, CompletionBody, Generating, TokenizeBody
from orchestrator.gateway.structure import grammar_of
from orchestrator.gateway.tools.notation import NOTATIONS, Notation, detected
from orchestrator.gateway.tools.offer import Offer, make_offer, shown_tools
from orchestrator.gateway.tools.schemas import ToolChoice
from orchestrator.gateway.work import Work
from orchestrator.loop import Generation

TIMEOUT_HEADER = "x-request-timeout"
LONG_CHAT = 1 << 16  # characters beyond which others would notice the time that a template takes


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt under the name that its errors have."""

    field: str
    token_ids: tuple[int, ...]
    text: str


class Gateway:
    """What the routes share. `ready` is false until requests are welcome, and while draining."""

    def __init__(
        self, front: Front, template: ChatTemplate, defaults: SamplingParameters = OPENAI
    ) -> None:
        self.front = front
        self.ready = False
        self.started = int(time.time())
        self.ending = Ending()
        self._template = template
        self._defaults = defaults
        self._tokenizer = front.deployment.tokenizer
        self._settings = front.deployment.settings

    @property
    def model_name(self) -> str:
        """The one model's name. Raises Unavailable while no verifier is known."""
        return self._settings.served_model_name or self.front.deployment.verifier.model_name

    def require_model(self, name: str | None) -> None:
        """Raises UnknownModel for another one than is served; None asks for that one."""
        if name is not None and name != self.model_name:
            raise UnknownModel(f"model: must be {self.model_name!r}; got {name[:80]!r}")

    def require_caller(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthenticated where a key is needed and none that is known came."""
        caller_of(self.front, headers)

    async def completion(self, said: CompletionBody, headers: Mapping[str, str]) -> Work:
        """Raises InvalidInput, UnknownModel, Unavailable."""
        entries = _entries(said)
        caller = self._welcome(said, len(entries), headers)
        prompts = [await self._prompt(*entry) for entry in entries]
        choices = said.n or 1
        echoes = [prompt.text if said.echo else "" for prompt in prompts for _ in range(choices)]
        return await self._work(said, prompts, caller, headers, CompletionFormat(echoes))

    async def chat(self, said: ChatBody, headers: Mapping[str, str]) -> Work:
        """Raises InvalidInput, UnknownModel, Unavailable."""
        caller = self._welcome(said, 1, headers)
        generation_prompt = said.add_generation_prompt is not False
        text = await self._rendered(said, said.tool_choice, generation_prompt=generation_prompt)
        # The template has written the special tokens that belong to the prompt.
        token_ids = await self._tokenizer.encoded(text, add_special_tokens=False)
        prompt = Prompt("messages", tuple(token_ids), text)
        hidden = said.include_reasoning is False
        reading = Reading(self._thought(text), self._offer(said), hidden)
        return await self._work(said, [prompt], caller, headers, ChatFormat(reading), reading)

    async def tokens(self, said: TokenizeBody) -> list[int]:
        """Token ids of a text or of a chat's prompt."""
        self.require_model(said.model)
        if said.messages is None:
            special = said.add_special_tokens is not False
            return await self._tokenizer.encoded(said.prompt or "", add_special_tokens=special)
        generation_prompt = said.add_generation_prompt is not False
        text = await self._rendered(said, None, generation_prompt=generation_prompt)
        special = bool(said.add_special_tokens)
        return await self._tokenizer.encoded(text, add_special_tokens=special)

    def _welcome(self, said: Generating, prompts: int, headers: Mapping[str, str]) -> Caller:
        """Who asks. So many choices as never run at once would never be admitted."""
        if not self.ready:
            raise Unavailable("the server is not ready, or is about to stop")
        self.require_model(said.model)
        caller = caller_of(self.front, headers)
        most = min(self._settings.max_requests, caller.most_at_once or self._settings.max_requests)
        if prompts > most:
            raise InvalidInput("prompt", f"must have at most {most} entries", f"{prompts} entries")
        if prompts * (said.n or 1) > most:
            raise InvalidInput("n", f"must be at most {most // prompts} here", said.n)
        return caller

    async def _work(
        self,
        said: Generating,
        prompts: list[Prompt],
        caller: Caller,
        headers: Mapping[str, str],
        form: AnswerFormat,
        reading: Reading = PLAIN,
    ) -> Work:
        info = self.front.deployment.verifier
        tenant, seconds, seed = tenant_of(headers), self._seconds(headers), seed_of(said)
        grammar = reading.grammar(grammar_of(said))
        generations = []
        for prompt in prompts:
            check_token_ids(prompt.field, prompt.token_ids, info.vocabulary_size)
            _require_room(prompt, info.context_length)
            for one in parameters(said, prompt.token_ids, tenant, seed, grammar, self._defaults):
                generations.append(await self._generation(said, one, seconds, caller, reading))
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
            ending=self.ending,
            headers=tuple(headers.items()),
            caller=caller,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            traced=bool(said.stream and said.speculative and said.speculative.trace),
        )

    def _seconds(self, headers: Mapping[str, str]) -> float:
        """The client's time limit, never above the server's."""
        most = self._settings.http_request_timeout_s
        said = headers.get(TIMEOUT_HEADER)
        if said is None:
            return most
        try:
            seconds = float(said)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:  # NaN included
            raise InvalidInput(TIMEOUT_HEADER, "must be a number of seconds above 0", said)
        return min(seconds, most)

    async def _prompt(self, field: str, said: str | list[int]) -> Prompt:
        if isinstance(said, str):
            if not said:
                raise InvalidInput(field, "must not be empty", said)
            return Prompt(field, tuple(await self._tokenizer.encoded(said)), said)
        size = self.front.deployment.verifier.vocabulary_size
        check_token_ids(field, said, size)
        return Prompt(field, tuple(said), self._tokenizer.decode(said))

    async def _rendered(
        self, said: ChatBody | TokenizeBody, choice: ToolChoice | None, *, generation_prompt: bool
    ) -> str:
        """What the chat template makes of messages."""
        messages = for_template(said.messages or ())

        def render() -> str:
            return self._template.render(
                messages,
                add_generation_prompt=generation_prompt,
                tools=shown_tools(said.tools, choice),
                options=said.chat_template_kwargs,
            )

        letters = sum(len(message["content"]) for message in messages)
        return await asyncio.to_thread(render) if letters > LONG_CHAT else render()

    async def _generation(
        self,
        said: Generating,
        one: GenerationParameters,
        seconds: float,
        caller: Caller,
        reading: Reading,
    ) -> Generation:
        """Raises InvalidInput by the client's own names of fields."""
        try:
            return await self.front.generation(one, seconds, caller, reading.named_tokens)
        except InvalidInput as error:
            newer = isinstance(said, ChatBody) and said.max_completion_tokens is not None
            if error.field == "max_tokens" and newer:
                raise InvalidInput.passed_on("max_completion_tokens", error.description) from None
            raise by_form_field(error, said.form_field) from None

    def _offer(self, said: ChatBody) -> Offer | None:
        """What the answer may call. Raises InvalidInput where nobody could tell."""
        if not said.tools or not said.may_call:
            return None
        if self._notation is None:
            rule = "need a model whose way to write calls is known; set --tool-call-parser"
            raise Unsupported("tools", rule, f"{len(said.tools)} tools")
        choice, parallel = said.tool_choice or "auto", said.parallel_tool_calls is not False
        return make_offer(self._notation, said.tools, choice, self._tokenizer, parallel=parallel)

    def _thought(self, prompt: str) -> Thought | None:
        """What the answer may think before."""
        known = self._marks
        return None if known is None else thought_after(prompt, known, self._tokenizer)

    @functools.cached_property
    def _marks(self) -> Marks | None:
        """What the model writes around its reasoning: by the setting, or as its template shows."""
        name = self._settings.reasoning_parser
        if name == "auto":
            return marks.detected(self._template.tools_text)
        return None if name == "none" else MARKS[name]

    @functools.cached_property
    def _notation(self) -> Notation | None:
        """How the model writes calls: by the setting, or as its chat template shows."""
        name = self._settings.tool_call_parser
        if name == "auto":
            return detected(self._template.tools_text)
        return None if name == "none" else NOTATIONS[name]


def _require_room(prompt: Prompt, context_length: int) -> None:
    try:
        check_length(prompt.field, len(prompt.token_ids), context_length)
    except InvalidInput as error:
        raise ContextExceeded.passed_on(error.field, error.description) from None


def _entries(said: CompletionBody) -> list[tuple[str, str | list[int]]]:
    """Every prompt with the name of its place."""
    if isinstance(said.prompt, str):
        return [("prompt", said.prompt)]
    named: list[tuple[str, str | list[int]]] = []
    ids: list[int] = []
    for index, entry in enumerate(said.prompt):
        if isinstance(entry, int):
            ids.append(entry)
        elif isinstance(entry, str | list):
            named.append((f"prompt[{index}]", entry))
    return named or [("prompt", ids)]
