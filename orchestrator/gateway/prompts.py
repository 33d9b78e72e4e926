"""From what clients send to the tokens of prompts: texts, token ids, chats."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from draftloop.errors import InvalidInput
from draftloop.request import check_token_ids
from orchestrator.deployment import Deployment
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.messages import for_template
from orchestrator.gateway.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Generating,
    TokenizeBody,
)
from orchestrator.gateway.tools.offer import shown_tools
from orchestrator.gateway.tools.schemas import ToolChoice

LONG_CHAT = 1 << 16  # characters beyond which others would notice the time that a template takes


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt under the name that its errors have."""

    field: str
    token_ids: tuple[int, ...]
    text: str


class Prompts:
    """By the model's tokenizer and chat template. All raise InvalidInput by the client's names."""

    def __init__(self, deployment: Deployment, template: ChatTemplate) -> None:
        self._deployment = deployment
        self._tokenizer = deployment.tokenizer
        self._template = template

    async def of_completion(self, said: CompletionBody) -> list[Prompt]:
        """In the order in which they came."""
        return [self._cut(said, await self._read(said, *entry)) for entry in entries(said)]

    async def of_chat(self, said: ChatBody) -> Prompt:
        """What the template makes of the messages; it writes the special tokens that belong."""
        text = await self._rendered(said, said.tool_choice)
        token_ids = await self._encoded(said, text, special=False)
        return self._cut(said, Prompt("messages", tuple(token_ids), text))

    async def tokens(self, said: TokenizeBody) -> list[int]:
        """Token ids of a text or of a chat's prompt."""
        if said.messages is None:
            return await self._encoded(said, said.prompt or "", special=True)
        return await self._encoded(said, await self._rendered(said, None), special=False)

    def text(self, said: DetokenizeBody) -> str:
        """The text of token ids, special tokens left out."""
        if said.tokens:
            size = self._deployment.verifier.vocabulary_size
            check_token_ids("tokens", said.tokens, size)
        return self._tokenizer.decode(said.tokens)

    async def _encoded(
        self, said: Generating | TokenizeBody, text: str, *, special: bool
    ) -> list[int]:
        """With the tokenizer's special tokens, or without, where the client leaves it open."""
        wanted = special if said.add_special_tokens is None else said.add_special_tokens
        return await self._tokenizer.encoded(text, add_special_tokens=wanted)

    async def _read(self, said: CompletionBody, field: str, entry: str | list[int]) -> Prompt:
        if isinstance(entry, str):
            if not entry:
                raise InvalidInput(field, "must not be empty", entry)
            token_ids = await self._encoded(said, entry, special=True)
            return Prompt(field, tuple(token_ids), entry)
        check_token_ids(field, entry, self._deployment.verifier.vocabulary_size)
        return Prompt(field, tuple(entry), self._tokenizer.decode(entry))

    def _cut(self, said: Generating, prompt: Prompt) -> Prompt:
        """The end of it, where no more is to be read."""
        most = said.truncate_prompt_tokens
        if most is None or most >= len(prompt.token_ids):
            return prompt
        kept = prompt.token_ids[-most:]
        return Prompt(prompt.field, kept, self._tokenizer.decode(list(kept)))

    async def _rendered(self, said: ChatBody | TokenizeBody, choice: ToolChoice | None) -> str:
        messages = for_template(said.messages or ())
        known: dict[str, Any] = {
            "tools": shown_tools(said.tools, choice), "options": said.chat_template_kwargs,
        }  # fmt: skip

        def render() -> str:
            if said.continue_final_message:
                return self._template.render_open(messages, **known)
            opens = said.add_generation_prompt is not False
            return self._template.render(messages, add_generation_prompt=opens, **known)

        letters = sum(len(message["content"]) for message in messages)
        return await asyncio.to_thread(render) if letters > LONG_CHAT else render()


def entries(said: CompletionBody) -> list[tuple[str, str | list[int]]]:
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
