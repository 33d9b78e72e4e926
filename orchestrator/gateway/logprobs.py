"""Log-probabilities in the two formats of OpenAI's API."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from draftloop.logprobs import TokenLogprobs
from draftloop.request import USUAL, TextForm
from orchestrator.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0  # JSON has no infinity; OpenAI and vLLM write this instead


class LogprobsFormat(Protocol):
    """Writes the log-probabilities of one choice, whose tokens it gets in order."""

    def of(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The next tokens' log-probabilities."""


class CompletionLogprobs:
    """Completions: parallel lists. `text_offset` counts characters from the start of the choice.

    The token itself is among `top_logprobs` even where it is not among the likeliest.
    """

    def __init__(self, tokenizer: Tokenizer, form: TextForm = USUAL) -> None:
        self._tokenizer = tokenizer
        self._named = form.named_tokens
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return self._lists(entries)

    def of_prompt(
        self, first: int, entries: Iterable[TokenLogprobs], max_top: int, text: str
    ) -> dict[str, list[Any]]:
        """Those of a prompt echoed as `text`, with `max_top` likeliest tokens each; before `of`.

        The `first` token of a prompt has no log-probability.
        """
        shown = [
            TokenLogprobs(entry.token_id, entry.logprob, entry.top[:max_top]) for entry in entries
        ]
        lists = self._lists([TokenLogprobs(first, 0.0), *shown], text)
        lists["token_logprobs"][0] = lists["top_logprobs"][0] = None
        return lists

    def _lists(
        self, entries: Sequence[TokenLogprobs], echoed: str | None = None
    ) -> dict[str, list[Any]]:
        """The parallel lists of the choice's next tokens, or of a prompt echoed as this text."""
        return {
            "tokens": [self._name(entry.token_id) for entry in entries],
            "token_logprobs": [json_logprob(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": [self._next_offset(entry.token_id, echoed) for entry in entries],
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        pairs = (*entry.top, (entry.token_id, entry.logprob))
        return {self._name(token): json_logprob(logprob) for token, logprob in pairs}

    def _name(self, token_id: int) -> str:
        """The token's text, or its bytes if they are no UTF-8: two tokens must not look alike."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _next_offset(self, token_id: int, echoed: str | None) -> int:
        data, special = self._tokenizer.token_bytes(token_id), self._tokenizer.is_special(token_id)
        named = token_id in self._named
        if echoed is not None:
            named, data = self._as_echoed(data, echoed, special=special)
        if special and not named:
            return self._offset
        if named or not self._tokenizer.continues_character(token_id):
            self._offset += len(self._characters.decode(b"", final=True))  # unfinished: broken
        offset = self._offset
        if named:
            self._offset += len(self._tokenizer.token_text(token_id))
            return offset
        self._offset += len(self._characters.decode(data))
        return offset

    def _as_echoed(self, data: bytes, text: str, *, special: bool) -> tuple[bool, bytes]:
        """Whether a special token is in the prompt's text, and the token's bytes as they are there.

        The text may be the client's own, which names some special tokens and lacks those that the
        tokenizer adds, like the space that sentencepiece puts before a text.
        """
        if special:
            return text.startswith(data.decode(), self._offset), data
        added = data.startswith(b" ") and not text.startswith(" ", self._offset)
        return False, data[1:] if added else data


class ChatLogprobs:
    """Chats: one object per token, with its bytes."""

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
        return {"token": text, "logprob": json_logprob(logprob), "bytes": list(data)}


class PendingLogprobs:
    """Holds the logprobs of an answer's tokens until it is known which part their text is in."""

    def __init__(self) -> None:
        self._first = 0
        self._kept: list[dict[str, Any]] = []

    def add(self, entries: Sequence[dict[str, Any]]) -> None:
        """Adds those of the next tokens."""
        self._kept.extend(entries)

    def of(self, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """Those of the tokens with these numbers in the answer; earlier ones are dropped."""
        if not self._kept or not tokens:
            return []
        found = [self._kept[token - self._first] for token in tokens]
        dropped = tokens[-1] + 1 - self._first
        self._kept, self._first = self._kept[dropped:], self._first + dropped
        return found


def json_logprob(logprob: float) -> float:
    """The log-probability in a form that JSON can hold: at least `MIN_LOGPROB`."""
    return max(logprob, MIN_LOGPROB)
