"""Turns what clients send (texts, token ids, chats) into the tokens of prompts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from draftloop.errors import InvalidInput
from draftloop.request import check_token_ids
from orchestrator.deployment import Deployment
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.errors import ContextExceeded
from orchestrator.gateway.generating import Generating
from orchestrator.gateway.messages import for_template
from orchestrator.gateway.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from orchestrator.gateway.size import is_large
from orchestrator.gateway.tools.offer import shown_tools

MAX_INLINE_CHARACTERS = 1 << 16  # characters beyond which rendering would hold up other requests


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt. `field` names it in errors; `text` may be empty if it is not needed."""

    field: str
    token_ids: tuple[int, ...]
    text: str


class Prompts:
    """Makes prompts with the model's tokenizer and chat template.

    All methods raise InvalidInput with the client's field names. Work that a body of some megabytes
    could make slow is done off the event loop, or once its length is known to be within the model's
    limits.
    """

    def __init__(self, deployment: Deployment, template: ChatTemplate) -> None:
        self._deployment = deployment
        self._tokenizer = deployment.tokenizer
        self._template = template

    async def of_completion(self, body: CompletionBody) -> list[Prompt]:
        """The prompts in the client's order; with their texts if these are echoed."""
        prompts = []
        for entry in prompt_entries(body):
            prompts.append(await self._read(body, *entry))
            await asyncio.sleep(0)  # many prompts must not hold up other requests
        return prompts

    async def of_chat(self, body: ChatBody) -> Prompt:
        """A chat's prompt.

        The template writes the special tokens; the tokenizer adds none unless the client says so.
        """
        text, token_ids = await self._chat(body)
        return await self._truncate_and_check(body, "messages", token_ids, text, with_text=True)

    async def tokens(self, body: ChatBody | TokenizeBody) -> list[int]:
        """Token ids of a text or of a chat's prompt."""
        if body.messages is None:
            return await self._encode(body, body.prompt or "", special=True)
        return (await self._chat(body))[1]

    async def text(self, body: DetokenizeBody) -> str:
        """The text of token ids, without special tokens."""
        if body.tokens:
            size = self._deployment.verifier.vocabulary_size
            check_token_ids("tokens", body.tokens, size)
        return await self._tokenizer.decode_async(body.tokens)

    async def _chat(self, body: ChatBody | TokenizeBody) -> tuple[str, list[int]]:
        """A chat's prompt, as text and as tokens."""
        text = await self._render(body)
        return text, await self._encode(body, text, special=False)

    async def _encode(
        self, body: Generating | TokenizeBody, text: str, *, special: bool
    ) -> list[int]:
        """Token ids of a text. `special`: the tokenizer adds its special tokens by default."""
        add_special_tokens = special if body.add_special_tokens is None else body.add_special_tokens
        return await self._tokenizer.encode_async(text, add_special_tokens=add_special_tokens)

    async def _read(self, body: CompletionBody, field: str, entry: str | list[int]) -> Prompt:
        with_text = bool(body.echo)
        if not isinstance(entry, str):
            return await self._truncate_and_check(body, field, entry, None, with_text=with_text)
        if not entry:
            raise InvalidInput(field, "must not be empty", entry)
        token_ids = await self._encode(body, entry, special=True)
        return await self._truncate_and_check(body, field, token_ids, entry, with_text=with_text)

    async def _truncate_and_check(
        self,
        body: Generating,
        field: str,
        token_ids: list[int],
        text: str | None,
        *,
        with_text: bool,
    ) -> Prompt:
        """The prompt, truncated if the client wants it, and checked; `with_text`: with its text."""
        max_tokens = body.truncate_prompt_tokens
        if max_tokens is not None and max_tokens < len(token_ids):
            token_ids, text = token_ids[-max_tokens:], None
        model = self._deployment.verifier
        _require_room(field, len(token_ids), model.context_length)
        check_token_ids(field, token_ids, model.vocabulary_size)
        if text is None and with_text:
            text = await self._tokenizer.decode_async(token_ids)
        return Prompt(field, tuple(token_ids), text or "")

    async def _render(self, body: ChatBody | TokenizeBody) -> str:
        def render() -> str:
            messages = for_template(body.messages or ())
            arguments: dict[str, Any] = {
                "tools": shown_tools(body.offered, body.choice), "options": options,
            }  # fmt: skip
            if body.continue_final_message:
                return self._template.render_open(messages, **arguments)
            add_generation_prompt = body.add_generation_prompt is not False
            return self._template.render(
                messages, add_generation_prompt=add_generation_prompt, **arguments
            )

        options = self._options(body)
        is_long = is_large(
            MAX_INLINE_CHARACTERS, body.messages, body.tools, body.chat_template_kwargs
        )
        return await asyncio.to_thread(render) if is_long else render()

    def _options(self, body: ChatBody | TokenizeBody) -> dict[str, Any]:
        """The template's further variables.

        `reasoning_effort` is also given as whether to think, for templates that know no effort.
        """
        options = body.chat_template_kwargs or {}
        effort = body.reasoning_effort if isinstance(body, ChatBody) else None
        if effort is None:
            return options
        thinks = effort != "none"
        return {
            "reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks, **options,
        }  # fmt: skip


def count_prompts(body: CompletionBody) -> int:
    """The number of prompts."""
    is_single = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)
    return 1 if is_single else len(body.prompt)


def prompt_entries(body: CompletionBody) -> list[tuple[str, str | list[int]]]:
    """Every prompt with its field name."""
    prompts: Any = body.prompt
    if isinstance(prompts, str) or isinstance(prompts[0], int):
        return [("prompt", prompts)]
    return [(f"prompt[{index}]", entry) for index, entry in enumerate(prompts)]


def _require_room(field: str, tokens: int, context_length: int) -> None:
    """Raises ContextExceeded if the prompt leaves no room for output.

    Clients of both APIs recognize it by these words, even without the error's code: agents then
    shorten their conversation and go on.
    """
    max_tokens = context_length - 1
    if tokens > max_tokens:
        message = f"prompt is too long: {tokens} tokens > {max_tokens} maximum"
        message += f"; this model's maximum context length is {context_length} tokens"
        raise ContextExceeded.from_description(field, message)
