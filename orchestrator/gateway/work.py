"""One HTTP completion: its generations, written as one JSON object or as a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from draftloop.errors import InvalidInput
from draftloop.logprobs import TokenLogprobs
from draftloop.tracing import Headers
from orchestrator.access import Caller
from orchestrator.front import Front
from orchestrator.gateway import figures
from orchestrator.gateway.answers import DONE, error_events, event
from orchestrator.gateway.form_field import with_form_field
from orchestrator.gateway.formats import AnswerFormat, Choice
from orchestrator.gateway.logprobs import CompletionLogprobs, LogprobsFormat
from orchestrator.gateway.prompt_logprobs import PromptLogprobsAnswer
from orchestrator.gateway.rounds import trace
from orchestrator.gateway.runs import Step, steps
from orchestrator.gateway.size import write_entries
from orchestrator.loop import STOP, Generation

Form = TypeVar("Form", bound=AnswerFormat)


@dataclass(slots=True, kw_only=True)
class Work(Generic[Form]):
    """The choices of one request, n for each prompt, in the order of the prompts.

    Every request needs a new one.
    """

    front: Front
    model: str
    fingerprint: str
    generations: list[Generation]
    prompt_tokens: int
    choices: int  # per prompt
    form: Form
    headers: Headers
    caller: Caller
    form_field: str | None = None  # the client's field that sets the answers' form
    include_usage: bool = False
    continuous_usage: bool = False
    traced: bool = False
    returns_token_ids: bool = False
    prompt_answer: PromptLogprobsAnswer = PromptLogprobsAnswer()
    prompt_only: bool = False  # the choices are their prompts; generated tokens are left out
    answer_id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    _logprobs: list[LogprobsFormat] = field(init=False)

    def __post_init__(self) -> None:
        self.answer_id = f"{self.form.id_prefix}-{uuid.uuid4().hex}"
        tokenizer = self.front.deployment.tokenizer
        forms = [generation.request.text_form for generation in self.generations]
        self._logprobs = [self.form.logprobs(tokenizer, form) for form in forms]

    async def whole(self) -> dict[str, Any]:
        """The answer, once all choices have ended."""
        texts: list[list[str]] = [[] for _ in self.generations]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in self.generations]
        reasons: list[str | None] = [None for _ in self.generations]
        async with contextlib.aclosing(self.steps()) as all_steps:
            async for step in all_steps:
                texts[step.choice].extend(step.piece.texts)
                logprobs[step.choice].extend(step.piece.logprobs)
                reasons[step.choice] = step.finish_reason
        choices = [
            await self._whole_choice(index, texts[index], logprobs[index], reasons[index])
            for index in range(len(self.generations))
        ]
        answer = self._envelope(self.form.whole_object, choices)
        for choice, generation in zip(choices, self.generations, strict=True):
            self._add_token_ids(answer, choice, self._output(generation), first=True)
            await self._add_prompt_logprobs(answer, choice)
        return answer | {"usage": self.usage(), "metrics": self.metrics()}

    async def _whole_choice(
        self, index: int, texts: list[str], entries: list[TokenLogprobs], reason: str | None
    ) -> Choice:
        echoed = await self._echoed_logprobs(index)

        def write() -> Choice:
            logprobs = _join_lists(echoed, self.format_logprobs(index, entries))
            return self.form.whole(index, texts, logprobs, reason)

        count = len(texts) + sum(len(entry.top) for entry in entries)
        choice = await write_entries(write, count)
        await asyncio.sleep(0)  # many choices must not hold up other requests
        return {**choice, "stop_reason": self._stop_reason(index)}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as events, including the final `[DONE]`; a piece may hold several events."""
        opened_choices: set[int] = set()
        running = len(self.generations)
        async with contextlib.aclosing(self.steps()) as all_steps:
            async for step in all_steps:
                choices = []
                if first := step.choice not in opened_choices:
                    echoed = await self._echoed_logprobs(step.choice)
                    choices = self.form.opening(step.choice, echoed)
                    opened_choices.add(step.choice)
                running -= step.finish_reason is not None
                # A round may complete no text: half a character, or the beginning of a stop text.
                delta, is_extended = self._delta(step), self.traced or self.returns_token_ids
                if is_extended or self.form.has_content(delta):
                    choices.append(delta)
                chunks = [self._chunk([choice]) for choice in choices]
                if is_extended:
                    self._add_token_ids(chunks[-1], delta, step.piece.token_ids, first=first)
                if not running and not self.include_usage:
                    chunks[-1]["metrics"] = self.metrics()
                if chunks:
                    yield b"".join(map(event, chunks))
        if self.include_usage:
            last = self._chunk([]) | {"usage": self.usage(), "metrics": self.metrics()}
            yield event(last)
        yield DONE

    def error_event(self, error: Exception) -> bytes:
        """The events that report an error which ends the stream."""
        return error_events(error)

    async def steps(self) -> AsyncGenerator[Step, None]:
        """The steps of all choices. Raises what ends them, with the client's field names."""
        running = steps(self.front, self.generations, self.headers, self.caller)
        try:
            async with contextlib.aclosing(running):
                async for step in running:
                    yield step.without_output() if self.prompt_only else step
        except InvalidInput as error:
            raise with_form_field(error, self.form_field) from None

    def _output(self, generation: Generation) -> Sequence[int]:
        """Token ids of the output that the answer shows."""
        return () if self.prompt_only else generation.output

    def _add_token_ids(
        self, answer: dict[str, Any], choice: Choice, output: Sequence[int], *, first: bool
    ) -> None:
        """Adds a choice's token ids if the client wants them; with `first`, its prompt's too."""
        if not self.returns_token_ids:
            return
        choice["token_ids"] = list(output)
        if first:
            prompt = self.generations[choice["index"]].request.prompt
            self._prompt_fields_target(answer, choice)["prompt_token_ids"] = list(prompt)

    async def _add_prompt_logprobs(self, answer: dict[str, Any], choice: Choice) -> None:
        """Adds the logprobs of a choice's prompt if the client wants them."""
        target = self._prompt_fields_target(answer, choice)
        if self.prompt_answer.top is not None and "prompt_logprobs" not in target:
            generation = self.generations[choice["index"]]
            logprobs = await self.prompt_answer.write(generation, self.front.deployment.tokenizer)
            target["prompt_logprobs"] = logprobs

    def _prompt_fields_target(self, answer: dict[str, Any], choice: Choice) -> dict[str, Any]:
        """The object with the prompt's fields: as in vLLM, the answer if all choices share one."""
        return answer if self.form.one_prompt else choice

    async def _echoed_logprobs(self, index: int) -> dict[str, Any] | None:
        writer = self._logprobs[index]
        if self.prompt_answer.echoed is None or not isinstance(writer, CompletionLogprobs):
            return None
        text = self.form.echo(index)
        return await self.prompt_answer.echo(self.generations[index], writer, text)

    def _stop_reason(self, index: int) -> str | int | None:
        """vLLM's `stop_reason`: the client's stop text or token that ended a choice, if one did."""
        generation = self.generations[index]
        if self.prompt_only:
            return None
        if generation.stop_text is not None or generation.finish_reason != STOP:
            return generation.stop_text
        last = generation.output[-1]
        return None if last in self.front.deployment.verifier.stop_token_ids else last

    def _delta(self, step: Step) -> Choice:
        piece = step.piece
        logprobs = self.format_logprobs(step.choice, piece.logprobs)
        choice = self.form.delta(step.choice, piece.texts, logprobs, step.finish_reason)
        if step.finish_reason is not None:
            choice["stop_reason"] = self._stop_reason(step.choice)
        if self.traced:
            choice["trace"] = trace(piece, self.front.deployment.tokenizer)
        return choice

    def format_logprobs(
        self, index: int, entries: list[TokenLogprobs] | tuple[TokenLogprobs, ...]
    ) -> Any:
        """A choice's next log-probabilities; None if the client did not ask for them."""
        is_wanted = self.generations[index].request.logprobs is not None
        return self._logprobs[index].of(entries) if is_wanted else None

    def _chunk(self, choices: list[Choice]) -> dict[str, Any]:
        chunk = self._envelope(self.form.chunk_object, choices)
        if not self.include_usage:
            return chunk
        return chunk | {"usage": self.usage() if self.continuous_usage else None}

    def _envelope(self, kind: str, choices: list[Choice]) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def usage(self) -> dict[str, Any]:
        """Numbers of tokens. A prompt counts once, however many choices continue it."""
        firsts = self.generations[:: self.choices]
        cached = sum(generation.cached_prompt_tokens for generation in firsts)
        counted = () if self.prompt_only else self.generations
        completion = sum(generation.output_length for generation in counted)
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if (reasoning := self.form.reasoning_tokens()) is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage

    def metrics(self) -> dict[str, Any]:
        """Figures of drafting and times."""
        max_draft_tokens = self.front.deployment.settings.max_draft_tokens
        return figures.metrics(self.generations, max_draft_tokens)


def _join_lists(first: dict[str, Any] | None, second: Any) -> Any:
    """Joins parallel lists, name by name."""
    return second if first is None else {name: first[name] + second[name] for name in first}
