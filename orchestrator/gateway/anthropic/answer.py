"""An answer of the Messages API, as a whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.gateway.answers import named_event
from orchestrator.gateway.anthropic.names import own_names
from orchestrator.gateway.anthropic.output import KINDS
from orchestrator.gateway.errors import problem
from orchestrator.gateway.event_answer import EventAnswer
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.output import COMPLETED, Object
from orchestrator.gateway.runs import Step
from orchestrator.gateway.work import Work

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageAnswer(EventAnswer):
    """The first event has what is known before the first token, the others only what is new."""

    names, id_prefix = own_names, "msg"

    def __init__(self, work: Work[ChatFormat]) -> None:
        super().__init__(work, KINDS)
        self._stop: Object = {"stop_reason": None, "stop_sequence": None}

    def error_event(self, error: Exception) -> bytes:
        """The event that reports an error which ends the stream."""
        return named_event("error", problem(error).anthropic_body)

    def _first_events(self) -> Iterator[Object]:
        yield {"type": "message_start", "message": self._message()}

    def _step_events(self, step: Step) -> Iterator[Object]:
        parts, reason = self._work.form.read(step.choice, step.piece.texts, step.finish_reason)
        yield from self._output.feed(parts)
        if reason is not None:
            self._stop = self._stop_fields(reason)
            yield from self._output.finish(COMPLETED)

    def _last_events(self) -> Iterator[Object]:
        usage, metrics = self._usage(), self._work.metrics()
        yield {"type": "message_delta", "delta": self._stop, "usage": usage, "metrics": metrics}
        yield {"type": "message_stop"}

    def _answer(self) -> Object:
        return {**self._message(), "metrics": self._work.metrics()}

    def _message(self) -> Object:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._work.model,
            "content": self._output.value,
            **self._stop,
            "usage": self._usage(),
        }

    def _stop_fields(self, reason: str) -> Object:
        text = self._work.generations[0].stop_text if reason == "stop" else None
        return {
            "stop_reason": STOP_REASONS[reason] if text is None else "stop_sequence",
            "stop_sequence": text,
        }

    def _usage(self) -> Object:
        """Usage as this API counts it: input does not include tokens found in the cache."""
        counted = self._work.usage()
        cached = counted["prompt_tokens_details"]["cached_tokens"]
        usage = {
            "input_tokens": counted["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counted["completion_tokens"],
        }
        if (details := counted.get("completion_tokens_details")) is not None:
            usage["output_tokens_details"] = {"thinking_tokens": details["reasoning_tokens"]}
        return usage
