"""Splits an answer in Harmony's channels as it is generated: the channel tells what a text is."""

from __future__ import annotations

import re
from typing import Literal

from orchestrator.gateway.harmony import (
    CALL,
    CALL_BEGIN,
    CHANNEL,
    END,
    FUNCTIONS,
    MESSAGE,
    RETURN,
    ROLE,
    START,
)
from orchestrator.gateway.parts import Content, Parts, Reasoning
from orchestrator.gateway.reasoning.count import Span
from orchestrator.text import overlap

Kind = Literal["reasoning", "content", "call", "plain"]

CLOSING_MARKS = (END, CALL, RETURN)
HEADER_OPENINGS = (START, CHANNEL, "to=")  # of a header
CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
CALL_TARGET = re.compile(rf"to={re.escape(FUNCTIONS)}([^\s<]+)")
MAX_HEADER_LENGTH = 1024


class ChannelReader:
    """Reads one answer. `answer_start`: what the prompt already has of it.

    Calls are passed on as content with their marks, in a uniform order, for the reader of calls.
    Text without a header is content. `spans`: where the reasoning is in the answer.
    """

    def __init__(self, answer_start: str = "") -> None:
        self.spans: list[Span] = []
        self._held = ""
        self._kind: Kind | None = None  # of the current message; None within a header
        self._kinds_passed_on: set[Kind] = set()
        self._opening = False  # nothing of the message has been passed on yet
        self._messages = 0
        self._parts = Parts()
        self._length = -len(answer_start)
        self.feed(answer_start)
        self._kinds_passed_on.clear()

    @property
    def kind(self) -> Kind | None:
        """Kind of the current message; None before the end of its header."""
        return self._kind

    @property
    def stage(self) -> object:
        """A value that changes when marks are passed."""
        return self._messages, self._kind

    def feed(self, text: str) -> Parts:
        """Reads the next text; returns the parts that are certain by now."""
        self._held += text
        self._length += len(text)
        while self._step():
            pass
        return self._take_parts()

    def finish(self) -> Parts:
        """Reads the end: part of a header is dropped, other text that was held back is returned."""
        rest, self._held = self._held, ""
        if self._kind is not None:
            self._pass_on(rest)
        elif not any(mark in rest for mark in HEADER_OPENINGS) and (
            rest.strip() or not self._kinds_passed_on
        ):
            self._parts.add(Content(rest))
        return self._take_parts()

    def _take_parts(self) -> Parts:
        taken, self._parts = self._parts, Parts()
        return taken

    def _step(self) -> bool:
        """Reads one piece of what is held; false if more text is needed."""
        return self._read_header() if self._kind is None else self._read_message(self._kind)

    def _read_header(self) -> bool:
        header, mark, rest = self._held.partition(MESSAGE)
        stripped = header.lstrip()
        is_open = any(stripped.startswith(opening) for opening in HEADER_OPENINGS)
        if is_open and mark:
            self._held = rest
            self._begin(header)
            return True
        may_become_open = (
            any(opening.startswith(stripped) for opening in HEADER_OPENINGS) and not mark
        )
        if (is_open or may_become_open) and len(header) < MAX_HEADER_LENGTH:
            return False
        self._kind, self._opening = "plain", False
        return True

    def _begin(self, header: str) -> None:
        """Begins a message with that header."""
        called, channel = CALL_TARGET.search(header), CHANNEL_NAME.search(header)
        self._opening = True
        self._messages += 1
        if called is not None:
            self._kind = "call"
            self._parts.add(Content(f"{CALL_BEGIN}{called[1]}{MESSAGE}"))
        elif channel is not None and channel[1] == "analysis":
            self._kind = "reasoning"
            self.spans.append(Span(max(0, self._held_position), None))
        else:
            self._kind = "content"

    @property
    def _held_position(self) -> int:
        """Where in the answer the held text begins."""
        return self._length - len(self._held)

    def _read_message(self, kind: Kind) -> bool:
        marks = (*CLOSING_MARKS, START)
        found = [(position, mark) for mark in marks if (position := self._held.find(mark)) >= 0]
        if not found:
            overlap_length = max(overlap(self._held, mark) for mark in marks)
            certain_length = len(self._held) - overlap_length
            self._pass_on(self._held[:certain_length])
            self._held = self._held[certain_length:]
            return False
        position, mark = min(found)
        self._pass_on(self._held[:position])
        self._held = self._held[position:]
        if kind == "reasoning":
            self.spans[-1] = Span(self.spans[-1].start, max(0, self._held_position))
        if kind == "call":
            self._parts.add(Content(CALL))
        self._held = self._held if mark == START else self._held[len(mark) :]
        self._kind = None
        return True

    def _pass_on(self, text: str) -> None:
        """Passes text on; messages of the same kind are separated by a line end."""
        kind = self._kind
        if not text or kind is None:
            return
        separator = (
            "\n" if self._opening and kind != "call" and kind in self._kinds_passed_on else ""
        )
        self._opening = False
        self._kinds_passed_on.add(kind)
        separated = separator + text
        self._parts.add(Reasoning(separated) if kind == "reasoning" else Content(separated))


def answer_start_in(prompt: str) -> str:
    """What a prompt already has of the answer."""
    _, mark, answer_start = prompt.rpartition(START + ROLE)
    return answer_start if mark else ""
