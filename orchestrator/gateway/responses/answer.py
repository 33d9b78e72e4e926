"""An answer of the Responses API, as a whole or as a stream of events."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from orchestrator.gateway.errors import problem
from orchestrator.gateway.event_answer import EventAnswer
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.logprobs import PendingLogprobs
from orchestrator.gateway.output import COMPLETED, IN_PROGRESS, INCOMPLETE, Object
from orchestrator.gateway.responses.body import ResponseBody
from orchestrator.gateway.responses.names import own_names
from orchestrator.gateway.responses.output import kinds
from orchestrator.gateway.responses.tools import custom_tool_names, namespaced_names
from orchestrator.gateway.runs import Step
from orchestrator.gateway.work import Work

FAILED = "failed"
PLAIN_FIELDS = {"text", "reasoning", "tools", "tool_choice"}
ECHOED_FIELDS = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "prompt_cache_key",
    "safety_identifier", "top_logprobs", "user",
)  # fmt: skip


class ResponseAnswer(EventAnswer):
    """Events are numbered; the first ones and the last one contain the whole response."""

    names, id_prefix = own_names, "resp"

    def __init__(self, work: Work[ChatFormat], body: ResponseBody) -> None:
        offered = body.offered
        super().__init__(work, kinds(namespaced_names(offered), custom_tool_names(offered)))
        self._body = body
        self._status = IN_PROGRESS
        self._error: Object | None = None
        self._logprobs = PendingLogprobs()
        self._events = 0

    def error_event(self, error: Exception) -> bytes:
        """The events that report an error which ends the stream.

        OpenAI's client refuses a stream that does not begin with `response.created`, so that the
        first events also come before the error of a stream that has had only comments.
        """
        first = [] if self._events else [*self._first_events()]
        self._status = FAILED
        if self._output.open is not None:
            self._output.open.value["status"] = INCOMPLETE
        self._error = {"code": "server_error", "message": problem(error).message}
        return b"".join(map(self._event, [*first, self._response_event(FAILED)]))

    def _first_events(self) -> Iterator[Object]:
        yield self._response_event("created")
        yield self._response_event("in_progress")

    def _step_events(self, step: Step) -> Iterator[Object]:
        parts, reason = self._work.form.read(step.choice, step.piece.texts, step.finish_reason)
        if (written := self._work.format_logprobs(step.choice, step.piece.logprobs)) is not None:
            self._logprobs.add(written["content"])
        yield from self._output.feed(parts, self._logprobs.of)
        if reason is not None:
            self._status = INCOMPLETE if reason == "length" else COMPLETED
            yield from self._output.finish_with_content(self._status)

    def _last_events(self) -> Iterator[Object]:
        yield self._response_event(self._status)

    def _event(self, event: Object) -> bytes:
        numbered = {**event, "sequence_number": self._events}
        self._events += 1
        return super()._event(numbered)

    def _response_event(self, what: str) -> Object:
        return {"type": f"response.{what}", "response": self._answer()}

    def _answer(self) -> Object:
        is_ended = self._status in (COMPLETED, INCOMPLETE)
        incomplete_details = {"reason": "max_output_tokens"} if self._status == INCOMPLETE else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._work.created,
            "model": self._work.model,
            "status": self._status,
            "error": self._error,
            "incomplete_details": incomplete_details,
            "output": self._output.value,
            **self._echoed,
            "usage": self._usage() if is_ended else None,
            "metrics": self._work.metrics() if is_ended else None,
        }

    @functools.cached_property
    def _echoed(self) -> Object:
        """The request's fields, with the values that apply where none was given."""
        body = self._body
        sampling = self._work.generations[0].request.sampling
        plain: dict[str, Any] = body.model_dump(
            include=PLAIN_FIELDS, exclude_none=True, by_alias=True
        )
        return {
            **{name: getattr(body, name) for name in ECHOED_FIELDS},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "text": {"format": {"type": "text"}, **plain.get("text", {})},
            "reasoning": {"effort": None, "summary": None, **plain.get("reasoning", {})},
            "tools": plain.get("tools", []),
            "tool_choice": plain.get("tool_choice", "auto"),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "background": False,
            "store": False,
            "service_tier": "default",
            "truncation": "disabled",
        }

    def _usage(self) -> Object:
        """The same counts as those of a chat, under this API's names."""
        counted = self._work.usage()
        reasoning = counted.get("completion_tokens_details", {"reasoning_tokens": 0})
        return {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": {**counted["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": reasoning,
            "total_tokens": counted["total_tokens"],
        }
