"""Log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from draftloop.logprobs import TokenLogprobs
from draftloop.request import USUAL, TextForm
from orchestrator.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no infinity; OpenAI and vLLM write this


class LogprobsFormat(Protocol):
    """Of one choice; it is given its tokens in order."""

    def of(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The next tokens' log-probabilities."""


class CompletionLogprobs:
    """Parallel lists. `text_offset` counts characters from the start of the choice's text.

    The token itself is among `top_logprobs` even where it is not among the likeliest.
    """

    def __init__(self, tokenizer: Tokenizer, form: TextForm = USUAL) -> None:
        self._tokenizer = tokenizer
        self._named = form.named_tokens
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return {
            "tokens": [self._name(entry.token_id) for entry in entries],
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": [self._next_offset(entry.token_id) for entry in entries],
        }

    def of_prompt(
        self, first: int, entries: Iterable[TokenLogprobs], most: int
    ) -> dict[str, list[Any]]:
        """Of an echoed prompt, before anything else; of its first token nothing is known."""
        shown = [TokenLogprobs(e.token_id, e.logprob, e.top[:most]) for e in entries]
        written = self.of([TokenLogprobs(first, 0.0), *shown])
        written["token_logprobs"][0] = written["top_logprobs"][0] = None
        return written

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        pairs = (*entry.top, (entry.token_id, entry.logprob))
        return {self._name(token): finite(logprob) for token, logprob in pairs}

    def _name(self, token_id: int) -> str:
        """A token of broken characters is told by its bytes: two of them must not look alike."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _next_offset(self, token_id: int) -> int:
        named, special = token_id in self._named, self._tokenizer.is_special(token_id)
        if special and not named:
            return self._offset
        if named or not self._tokenizer.continues_character(token_id):
            self._offset += len(self._characters.decode(b"", final=True))  # begun, it stays broken
        offset = self._offset
        if named:
            self._offset += len(self._tokenizer.token_text(token_id))
            return offset
        self._offset += len(self._characters.decode(self._tokenizer.token_bytes(token_id)))
        return offset


class ChatLogprobs:
    """One object a token, with its bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        content = [
            {
                **self._one(entry.token_id, entry.logprob),
                "top_logprobs": [self._one(token, logprob) for token, logprob in entry.top],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _one(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(data)}


class OfTokens:
    """What there is to tell of an answer's tokens, until it is known what their text is."""

    def __init__(self) -> None:
        self._first = 0
        self._kept: list[dict[str, Any]] = []

    def add(self, told: Sequence[dict[str, Any]]) -> None:
        """Of the next tokens."""
        self._kept.extend(told)

    def of(self, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """Of these, by their numbers. Those before are forgotten."""
        if not self._kept or not tokens:
            return []
        told = [self._kept[token - self._first] for token in tokens]
        passed = tokens[-1] + 1 - self._first
        self._kept, self._first = self._kept[passed:], self._first + passed
        return told


def finite(logprob: float) -> float:
    """As JSON can have it."""
    return max(logprob, LEAST)
