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

LONG_CHAT = 1 << 16  # characters beyond which rendering would hold up other requests


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

    async def of_completion(self, said: CompletionBody) -> list[Prompt]:
        """The prompts in the client's order; with their texts if these are echoed."""
        return [await self._read(said, *entry) for entry in entries(said)]

    async def of_chat(self, said: ChatBody) -> Prompt:
        """A chat's prompt.

        The template writes the special tokens; the tokenizer adds none unless the client says so.
        """
        text, token_ids = await self._chat(said)
        return await self._fitting(said, "messages", token_ids, text, told=True)

    async def tokens(self, said: ChatBody | TokenizeBody) -> list[int]:
        """Token ids of a text or of a chat's prompt."""
        if said.messages is None:
            return await self._encoded(said, said.prompt or "", special=True)
        return (await self._chat(said))[1]

    async def text(self, said: DetokenizeBody) -> str:
        """The text of token ids, without special tokens."""
        if said.tokens:
            size = self._deployment.verifier.vocabulary_size
            check_token_ids("tokens", said.tokens, size)
        return await self._tokenizer.decode_async(said.tokens)

    async def _chat(self, said: ChatBody | TokenizeBody) -> tuple[str, list[int]]:
        """A chat's prompt, as text and as tokens."""
        text = await self._rendered(said)
        return text, await self._encoded(said, text, special=False)

    async def _encoded(
        self, said: Generating | TokenizeBody, text: str, *, special: bool
    ) -> list[int]:
        """Token ids of a text. `special`: the tokenizer adds its special tokens by default."""
        wanted = special if said.add_special_tokens is None else said.add_special_tokens
        return await self._tokenizer.encode_async(text, add_special_tokens=wanted)

    async def _read(self, said: CompletionBody, field: str, entry: str | list[int]) -> Prompt:
        told = bool(said.echo)
        if not isinstance(entry, str):
            return await self._fitting(said, field, entry, None, told=told)
        if not entry:
            raise InvalidInput(field, "must not be empty", entry)
        token_ids = await self._encoded(said, entry, special=True)
        return await self._fitting(said, field, token_ids, entry, told=told)

    async def _fitting(
        self, said: Generating, field: str, token_ids: list[int], text: str | None, *, told: bool
    ) -> Prompt:
        """The prompt, truncated if the client wants that, and checked; with its text if `told`."""
        most = said.truncate_prompt_tokens
        if most is not None and most < len(token_ids):
            token_ids, text = token_ids[-most:], None
        model = self._deployment.verifier
        _require_room(field, len(token_ids), model.context_length)
        check_token_ids(field, token_ids, model.vocabulary_size)
        if text is None and told:
            text = await self._tokenizer.decode_async(token_ids)
        return Prompt(field, tuple(token_ids), text or "")

    async def _rendered(self, said: ChatBody | TokenizeBody) -> str:
        def render() -> str:
            messages = for_template(said.messages or ())
            known: dict[str, Any] = {
                "tools": shown_tools(said.offered, said.choice), "options": options,
            }  # fmt: skip
            if said.continue_final_message:
                return self._template.render_open(messages, **known)
            opens = said.add_generation_prompt is not False
            return self._template.render(messages, add_generation_prompt=opens, **known)

        options = self._options(said)
        long = is_large(LONG_CHAT, said.messages, said.tools, said.chat_template_kwargs)
        return await asyncio.to_thread(render) if long else render()

    def _options(self, said: ChatBody | TokenizeBody) -> dict[str, Any]:
        """The template's further variables.

        `reasoning_effort` is also given as whether to think, for templates that know no effort.
        """
        options = said.chat_template_kwargs or {}
        effort = said.reasoning_effort if isinstance(said, ChatBody) else None
        if effort is None:
            return options
        thinks = effort != "none"
        return {
            "reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks, **options,
        }  # fmt: skip


def count(said: CompletionBody) -> int:
    """The number of prompts."""
    one = isinstance(said.prompt, str) or isinstance(said.prompt[0], int)
    return 1 if one else len(said.prompt)


def entries(said: CompletionBody) -> list[tuple[str, str | list[int]]]:
    """Every prompt with its field name."""
    prompts: Any = said.prompt
    if isinstance(prompts, str) or isinstance(prompts[0], int):
        return [("prompt", prompts)]
    return [(f"prompt[{index}]", entry) for index, entry in enumerate(prompts)]


def _require_room(field: str, tokens: int, context_length: int) -> None:
    """Raises ContextExceeded if the prompt leaves no room for output.

    Clients of both APIs recognize it by these words, even without the error's code: agents then
    shorten their conversation and go on.
    """
    most = context_length - 1
    if tokens > most:
        told = f"prompt is too long: {tokens} tokens > {most} maximum"
        told += f"; this model's maximum context length is {context_length} tokens"
        raise ContextExceeded.passed_on(field, told)
