"""Log-probabilities of a prompt's tokens: with an echoed prompt, or as vLLM's `prompt_logprobs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.gateway.logprobs import CompletionLogprobs, finite
from orchestrator.loop import Generation
from orchestrator.tokenizer import Tokenizer

Made = TypeVar("Made")

LONG = 1 << 12  # entries beyond which writing them would hold up other requests


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """Which log-probabilities of prompts an answer has.

    `echoed`: how many likeliest tokens to show beside each token of an echoed prompt. `told`: how
    many in `prompt_logprobs`. None: no log-probabilities there.
    """

    echoed: int | None = None
    told: int | None = None

    async def echo(
        self, generation: Generation, writer: CompletionLogprobs, text: str
    ) -> dict[str, Any]:
        """Those of a prompt echoed as `text`, as parallel lists, which the output's continue."""
        said, prompt = generation.prompt_logprobs, generation.request.prompt
        assert said is not None, "the verifier was asked"
        most = self.echoed or 0
        return await _made(
            lambda: writer.of_prompt(prompt[0], said.entries(prompt), most, text),
            len(prompt) * (1 + said.count),
        )

    async def tell(self, generation: Generation, tokenizer: Tokenizer) -> list[Any]:
        """vLLM's `prompt_logprobs`: null for the first token, then an object for each token.

        It has an entry for the token itself and for each of the likeliest, by token id.
        """
        said, prompt = generation.prompt_logprobs, generation.request.prompt
        assert said is not None, "the verifier was asked"
        most = self.told or 0

        def one(token: int, logprob: float, rank: int) -> dict[str, Any]:
            text = tokenizer.token_bytes(token).decode("utf-8", "replace")
            return {"logprob": finite(logprob), "rank": rank, "decoded_token": text}

        def all_of_them() -> list[Any]:
            written: list[Any] = [None]
            for entry, rank in zip(said.entries(prompt), said.ranks, strict=True):
                known = {str(entry.token_id): one(entry.token_id, entry.logprob, rank)}
                for place, (token, logprob) in enumerate(entry.top[:most], 1):
                    known.setdefault(str(token), one(token, logprob, place))
                written.append(known)
            return written

        return await _made(all_of_them, len(prompt) * (1 + said.count))


async def _made(make: Callable[[], Made], entries: int) -> Made:
    return make() if entries <= LONG else await asyncio.to_thread(make)
