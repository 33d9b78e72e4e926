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

CLOSING = (END, CALL, RETURN)
OPENINGS = (START, CHANNEL, "to=")  # of a header
CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
CALLED = re.compile(rf"to={re.escape(FUNCTIONS)}([^\s<]+)")
LONGEST_HEADER = 1024


class ChannelReader:
    """Reads one answer. `begun`: what the prompt already has of it.

    Calls are passed on as content with their marks, in a uniform order, for the reader of calls.
    Text without a header is content. `spans`: where the reasoning is in the answer.
    """

    def __init__(self, begun: str = "") -> None:
        self.spans: list[Span] = []
        self._held = ""
        self._kind: Kind | None = None  # of the current message; None within a header
        self._told: set[Kind] = set()
        self._opening = False  # nothing of the message has been passed on yet
        self._messages = 0
        self._parts = Parts()
        self._letters = -len(begun)
        self.feed(begun)
        self._told.clear()

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
        self._letters += len(text)
        while self._step():
            pass
        return self._taken()

    def finish(self) -> Parts:
        """Reads the end: part of a header is dropped, other text that was held back is returned."""
        rest, self._held = self._held, ""
        if self._kind is not None:
            self._tell(rest)
        elif not any(mark in rest for mark in OPENINGS) and (rest.strip() or not self._told):
            self._parts.add(Content(rest))
        return self._taken()

    def _taken(self) -> Parts:
        taken, self._parts = self._parts, Parts()
        return taken

    def _step(self) -> bool:
        """Reads one piece of what is held; false if more text is needed."""
        return self._read_header() if self._kind is None else self._read_message(self._kind)

    def _read_header(self) -> bool:
        header, mark, rest = self._held.partition(MESSAGE)
        said = header.lstrip()
        opened = any(said.startswith(opening) for opening in OPENINGS)
        if opened and mark:
            self._held = rest
            self._begin(header)
            return True
        may_open = any(opening.startswith(said) for opening in OPENINGS) and not mark
        if (opened or may_open) and len(header) < LONGEST_HEADER:
            return False
        self._kind, self._opening = "plain", False
        return True

    def _begin(self, header: str) -> None:
        """Begins a message with that header."""
        called, channel = CALLED.search(header), CHANNEL_NAME.search(header)
        self._opening = True
        self._messages += 1
        if called is not None:
            self._kind = "call"
            self._parts.add(Content(f"{CALL_BEGIN}{called[1]}{MESSAGE}"))
        elif channel is not None and channel[1] == "analysis":
            self._kind = "reasoning"
            self.spans.append(Span(max(0, self._place), None))
        else:
            self._kind = "content"

    @property
    def _place(self) -> int:
        """Where in the answer the held text begins."""
        return self._letters - len(self._held)

    def _read_message(self, kind: Kind) -> bool:
        marks = (*CLOSING, START)
        found = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        if not found:
            held = max(overlap(self._held, mark) for mark in marks)
            certain = len(self._held) - held
            self._tell(self._held[:certain])
            self._held = self._held[certain:]
            return False
        at, mark = min(found)
        self._tell(self._held[:at])
        self._held = self._held[at:]
        if kind == "reasoning":
            self.spans[-1] = Span(self.spans[-1].start, max(0, self._place))
        if kind == "call":
            self._parts.add(Content(CALL))
        self._held = self._held if mark == START else self._held[len(mark) :]
        self._kind = None
        return True

    def _tell(self, text: str) -> None:
        """Passes text on; messages of the same kind are separated by a line end."""
        kind = self._kind
        if not text or kind is None:
            return
        between = "\n" if self._opening and kind != "call" and kind in self._told else ""
        self._opening = False
        self._told.add(kind)
        said = between + text
        self._parts.add(Reasoning(said) if kind == "reasoning" else Content(said))


def begun_in(prompt: str) -> str:
    """What a prompt already has of the answer."""
    _, mark, begun = prompt.rpartition(START + ROLE)
    return begun if mark else ""
