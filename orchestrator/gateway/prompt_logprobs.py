"""Log-probabilities of a prompt's tokens: with an echoed prompt, or as vLLM's `prompt_logprobs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.gateway.logprobs import CompletionLogprobs, json_logprob
from orchestrator.gateway.size import write_entries
from orchestrator.loop import Generation
from orchestrator.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptLogprobsAnswer:
    """Which log-probabilities of prompts an answer has.

    `echoed`: how many likeliest tokens to show beside each token of an echoed prompt. `top`: how
    many in `prompt_logprobs`. None: no log-probabilities there.
    """

    echoed: int | None = None
    top: int | None = None

    async def echo(
        self, generation: Generation, writer: CompletionLogprobs, text: str
    ) -> dict[str, Any]:
        """Those of a prompt echoed as `text`, as parallel lists, which the output's continue."""
        logprobs, prompt = generation.prompt_logprobs, generation.request.prompt
        assert logprobs is not None, "the verifier was asked"
        top = self.echoed or 0
        return await write_entries(
            lambda: writer.of_prompt(prompt[0], logprobs.entries(prompt), top, text),
            len(prompt) * (1 + logprobs.count),
        )

    async def write(self, generation: Generation, tokenizer: Tokenizer) -> list[Any]:
        """vLLM's `prompt_logprobs`: null for the first token, then an object for each token.

        It has an entry for the token itself and for each of the likeliest, by token id.
        """
        logprobs, prompt = generation.prompt_logprobs, generation.request.prompt
        assert logprobs is not None, "the verifier was asked"
        top = self.top or 0

        def entry_of(token: int, logprob: float, rank: int) -> dict[str, Any]:
            text = tokenizer.token_bytes(token).decode("utf-8", "replace")
            return {"logprob": json_logprob(logprob), "rank": rank, "decoded_token": text}

        def write_all() -> list[Any]:
            entries_written: list[Any] = [None]
            for entry, rank in zip(logprobs.entries(prompt), logprobs.ranks, strict=True):
                by_token = {str(entry.token_id): entry_of(entry.token_id, entry.logprob, rank)}
                for token_rank, (token, logprob) in enumerate(entry.top[:top], 1):
                    by_token.setdefault(str(token), entry_of(token, logprob, token_rank))
                entries_written.append(by_token)
            return entries_written

        return await write_entries(write_all, len(prompt) * (1 + logprobs.count))
