"""An answer of a chat, taken apart while it grows: reasoning, content, calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from draftloop.grammar import Grammar
from orchestrator.gateway.reasoning.reader import ReasoningReader
from orchestrator.gateway.reasoning.thought import Thought
from orchestrator.gateway.tools.offer import Offer
from orchestrator.gateway.tools.reader import CallPart, CallReader


class Parts(NamedTuple):
    """What some text made certain."""

    reasoning: str
    content: str
    calls: list[CallPart]


@dataclass(frozen=True, slots=True)
class Reading:
    """What the answers to a chat may have besides content. `hidden`: reasoning is left out."""

    thought: Thought | None = None
    offer: Offer | None = None
    hidden: bool = False

    @property
    def named_tokens(self) -> frozenset[int]:
        """Those special tokens that texts have to tell."""
        parts = (part for part in (self.thought, self.offer) if part is not None)
        return frozenset().union(*(part.named_tokens for part in parts))

    def grammar(self, form: Grammar | None) -> Grammar | None:
        """Of the whole answer, where its content has to be of that form, or has to call."""
        if self.offer is not None:
            form = self.offer.grammar
        return form if self.thought is None else self.thought.before(form)

    def reader(self) -> ChatReader:
        """A new one for every answer."""
        return ChatReader(
            None if self.thought is None else self.thought.reader(),
            None if self.offer is None else self.offer.reader(),
            hidden=self.hidden,
        )


PLAIN = Reading()


class ChatReader:
    """Reads one answer."""

    def __init__(
        self, reasoning: ReasoningReader | None, calls: CallReader | None, *, hidden: bool
    ) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._hidden = hidden

    @property
    def calls(self) -> int:
        """How many have begun."""
        return 0 if self._calls is None else self._calls.calls

    def feed(self, text: str, *, ends: bool) -> Parts:
        """The next text, and all that was held back where it is the last."""
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.feed(text)
            if ends:
                rest = self._reasoning.finish()
                reasoning, text = reasoning + rest.reasoning, text + rest.content
        calls: list[CallPart] = []
        if self._calls is not None:
            text, calls = self._calls.feed(text)
            if ends:
                last = self._calls.finish()
                text, calls = text + last.content, calls + last.calls
        return Parts("" if self._hidden else reasoning, text, calls)
