"""An answer of a chat, taken apart while it grows: reasoning, content, calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftloop.grammar import Grammar
from orchestrator.gateway.reasoning.channel_thought import ChannelThought
from orchestrator.gateway.reasoning.channels import ChannelReader
from orchestrator.gateway.reasoning.count import TokenPlaces
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

    thought: Thought | ChannelThought | None = None
    offer: Offer | None = None
    hidden: bool = False

    @property
    def named_tokens(self) -> frozenset[int]:
        """Those special tokens that texts have to tell."""
        parts = (part for part in (self.thought, self.offer) if part is not None)
        return frozenset().union(*(part.named_tokens for part in parts))

    @property
    def schemas(self) -> tuple[Grammar, ...]:
        """Those of the tools that must be called."""
        return () if self.offer is None else self.offer.schemas

    def grammar(self, form: Grammar | None) -> Grammar | None:
        """Of the whole answer, where its content has to be of that form, or has to call."""
        if self.offer is not None:
            form = self.offer.grammar
        if self.thought is None:
            return form
        return self.thought.before(form, calls=self.offer is not None)

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
        self,
        reasoning: ReasoningReader | ChannelReader | None,
        calls: CallReader | None,
        *,
        hidden: bool,
    ) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._hidden = hidden
        self._places = TokenPlaces()

    @property
    def reasoning_tokens(self) -> int | None:
        """How many have been reasoning so far; None where nothing is read as such."""
        if self._reasoning is None:
            return None
        return sum(self._places.within(span) for span in self._reasoning.spans)

    @property
    def calls(self) -> int:
        """How many have begun."""
        return 0 if self._calls is None else self._calls.calls

    def feed(self, texts: Sequence[str], *, ends: bool) -> Parts:
        """The texts of the next tokens, and all that was held back where they are the last."""
        self._places.add(texts)
        text, reasoning = "".join(texts), ""
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
