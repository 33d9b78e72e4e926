"""The two formats of an answer, text completion and chat completion, whole and in chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from draftloop.request import TextForm
from orchestrator.gateway.chat_reader import ChatReader, Reading
from orchestrator.gateway.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    LogprobsFormat,
    PendingLogprobs,
)
from orchestrator.gateway.parts import CallPart, Content, Parts
from orchestrator.tokenizer import Tokenizer

Choice = dict[str, Any]


class AnswerFormat(ABC):
    """How one kind of answer is written.

    `index` is the choice's, `texts` are the texts of its tokens, and `logprobs` are None if the
    client did not ask for them.
    """

    id_prefix: str
    whole_object: str
    chunk_object: str
    one_prompt = False  # whether all choices share one prompt

    @abstractmethod
    def opening(self, index: int, logprobs: Any) -> list[Choice]:
        """A choice's chunks before its first text. `logprobs` are those of an echoed prompt."""

    @abstractmethod
    def delta(
        self, index: int, texts: Sequence[str], logprobs: Any, finish_reason: str | None
    ) -> Choice:
        """A choice's next chunk."""

    @abstractmethod
    def whole(
        self, index: int, texts: Sequence[str], logprobs: Any, finish_reason: str | None
    ) -> Choice:
        """A choice as a whole."""

    @abstractmethod
    def has_content(self, choice: Choice) -> bool:
        """Whether a chunk has anything besides its index."""

    def echo(self, index: int) -> str:
        """The text of the prompt that goes before a choice's own."""
        return ""

    def reasoning_tokens(self) -> int | None:
        """Reasoning tokens of all choices so far; None if answers are not read for reasoning."""
        return None

    @abstractmethod
    def logprobs(self, tokenizer: Tokenizer, form: TextForm) -> LogprobsFormat:
        """A new writer of logprobs for one choice, whose text has this form."""


class CompletionFormat(AnswerFormat):
    """`/v1/completions`. `echoes`: for each choice the text that goes before its own."""

    id_prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, echoes: list[str]) -> None:
        self._echoes = echoes

    def echo(self, index: int) -> str:
        return self._echoes[index]

    def opening(self, index: int, logprobs: Any) -> list[Choice]:
        """The prompt, if it is to be echoed; one of special tokens has no text, but logprobs."""
        echo = self.echo(index)
        return [self.delta(index, echo, logprobs, None)] if echo or logprobs else []

    def delta(
        self, index: int, texts: Sequence[str], logprobs: Any, finish_reason: str | None
    ) -> Choice:
        text = "".join(texts)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def whole(
        self, index: int, texts: Sequence[str], logprobs: Any, finish_reason: str | None
    ) -> Choice:
        return self.delta(index, [self.echo(index), *texts], logprobs, finish_reason)

    def has_content(self, choice: Choice) -> bool:
        return bool(choice["text"] or choice["logprobs"] or choice["finish_reason"])

    def logprobs(self, tokenizer: Tokenizer, form: TextForm) -> LogprobsFormat:
        return CompletionLogprobs(tokenizer, form)


class ChatFormat(AnswerFormat):
    """`/v1/chat/completions`. Answers are split into reasoning, content and tool calls."""

    id_prefix, whole_object = "chatcmpl", "chat.completion"
    chunk_object = "chat.completion.chunk"
    one_prompt = True

    def __init__(self, reading: Reading) -> None:
        self._readers = defaultdict[int, ChatReader](reading.reader)  # by choice
        self._hides_reasoning = reading.hidden and reading.thought is not None
        # By choice, if reasoning is hidden.
        self._logprobs = defaultdict[int, PendingLogprobs](PendingLogprobs)

    def opening(self, index: int, logprobs: Any) -> list[Choice]:
        """The chunk with the role."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def delta(
        self, index: int, texts: Sequence[str], logprobs: Any, finish_reason: str | None
    ) -> Choice:
        parts, finish_reason = self.read(index, texts, finish_reason)
        logprobs, message_delta = self._visible_logprobs(index, logprobs, parts), _reasoning(parts)
        if parts.content:
            message_delta["content"] = parts.content
        if parts.calls:
            message_delta["tool_calls"] = [_call_delta(part) for part in parts.calls]
        return {
            "index": index, "delta": message_delta, "logprobs": logprobs,
            "finish_reason": finish_reason,
        }  # fmt: skip

    def whole(
        self, index: int, texts: Sequence[str], logprobs: Any, finish_reason: str | None
    ) -> Choice:
        parts, finish_reason = self.read(index, texts, finish_reason)
        logprobs = self._visible_logprobs(index, logprobs, parts)
        message: Choice = {"role": "assistant", "content": parts.content, "refusal": None}
        message |= _reasoning(parts)
        if parts.reasoning or parts.calls:
            message["content"] = parts.content or None
        if parts.calls:
            message["tool_calls"] = _whole_calls(parts.calls)
        return {
            "index": index, "message": message, "logprobs": logprobs,
            "finish_reason": finish_reason,
        }  # fmt: skip

    def _visible_logprobs(self, index: int, logprobs: Any, parts: Parts) -> Any:
        """The logprobs that the client gets: only the content's if reasoning is hidden.

        Those of the reasoning's tokens would reveal it.
        """
        if logprobs is None or not self._hides_reasoning:
            return logprobs
        pending = self._logprobs[index]
        pending.add(logprobs["content"])
        tokens = [part.tokens for part in parts if isinstance(part, Content)]
        visible = [entry for numbers in tokens for entry in pending.of(numbers)]
        return {**logprobs, "content": visible} if visible else None

    def has_content(self, choice: Choice) -> bool:
        return bool(choice["delta"] or choice["logprobs"] or choice["finish_reason"])

    def reasoning_tokens(self) -> int | None:
        counts = [reader.reasoning_tokens for reader in self._readers.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def logprobs(self, tokenizer: Tokenizer, form: TextForm) -> LogprobsFormat:
        return ChatLogprobs(tokenizer)

    def read(
        self, index: int, texts: Sequence[str], finish_reason: str | None
    ) -> tuple[Parts, str | None]:
        """The parts of the text, and the finish reason, which is `tool_calls` after a call."""
        reader = self._readers[index]
        parts = reader.feed(texts, ends=finish_reason is not None)
        has_calls = finish_reason == "stop" and reader.calls
        return parts, "tool_calls" if has_calls else finish_reason


def _reasoning(parts: Parts) -> dict[str, Any]:
    """The reasoning under vLLM's name, and under that of DeepSeek, SGLang and llama.cpp."""
    reasoning = parts.reasoning
    return {"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {}


def _call_delta(part: CallPart) -> dict[str, Any]:
    function = {"arguments": part.arguments}
    if not part.name:
        return {"index": part.call, "function": function}
    function_with_name = {"name": part.name, **function}
    return {
        "index": part.call,
        "id": part.call_id,
        "type": "function",
        "function": function_with_name,
    }


def _whole_calls(parts: list[CallPart]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for part in parts:
        if part.name:
            function = {"name": part.name, "arguments": ""}
            calls.append({"id": part.call_id, "type": "function", "function": function})
        calls[-1]["function"]["arguments"] += part.arguments
    return calls
