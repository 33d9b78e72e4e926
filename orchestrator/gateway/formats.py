"""The two forms of an answer, text completion and chat completion, whole and in chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from orchestrator.gateway.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsFormat
from orchestrator.tokenizer import Tokenizer

Choice = dict[str, Any]


class AnswerFormat(ABC):
    """How one kind of answer is written. Logprobs are None where they were not asked for."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    @abstractmethod
    def opening(self, index: int) -> list[Choice]:
        """What a stream says of a choice before its first text."""

    @abstractmethod
    def delta(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> Choice:
        """A choice's next piece."""

    @abstractmethod
    def whole(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> Choice:
        """A choice at once."""

    @abstractmethod
    def logprobs(self, tokenizer: Tokenizer) -> LogprobsFormat:
        """A new one for every choice."""


class CompletionFormat(AnswerFormat):
    """`/v1/completions`; `echoes` has the text that goes before each choice's own."""

    id_prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, echoes: list[str]) -> None:
        self._echoes = echoes

    def opening(self, index: int) -> list[Choice]:
        """The prompt, where it is to be echoed."""
        echo = self._echoes[index]
        return [self.delta(index, echo, None, None)] if echo else []

    def delta(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> Choice:
        """A choice's next piece."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def whole(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> Choice:
        """A choice at once."""
        return self.delta(index, self._echoes[index] + text, logprobs, finish_reason)

    def logprobs(self, tokenizer: Tokenizer) -> LogprobsFormat:
        """A new one for every choice."""
        return CompletionLogprobs(tokenizer)


class ChatFormat(AnswerFormat):
    """`/v1/chat/completions`."""

    id_prefix, whole_object = "chatcmpl", "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> list[Choice]:
        """Who speaks."""
        said = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": index, "delta": said, "logprobs": None, "finish_reason": None}]

    def delta(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> Choice:
        """A choice's next piece."""
        said = {"content": text} if text else {}
        return {
            "index": index, "delta": said, "logprobs": logprobs, "finish_reason": finish_reason,
        }  # fmt: skip

    def whole(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> Choice:
        """A choice at once."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }

    def logprobs(self, tokenizer: Tokenizer) -> LogprobsFormat:
        """A new one for every choice."""
        return ChatLogprobs(tokenizer)
