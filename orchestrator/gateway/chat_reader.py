"""Splits a chat's answer, as it is generated, into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftloop.grammar import Grammar
from orchestrator.gateway.parts import Content, Part, Parts, Reasoning
from orchestrator.gateway.reasoning.channel_thought import ChannelThought
from orchestrator.gateway.reasoning.channels import ChannelReader
from orchestrator.gateway.reasoning.count import TokenPlaces
from orchestrator.gateway.reasoning.reader import ReasoningReader
from orchestrator.gateway.reasoning.thought import Thought
from orchestrator.gateway.tools.offer import Offer
from orchestrator.gateway.tools.reader import CallReader


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers to a chat are read: the reasoning and tool calls that they may have.

    `hidden`: reasoning is left out of what the client gets.
    """

    thought: Thought | ChannelThought | None = None
    offer: Offer | None = None
    hidden: bool = False

    @property
    def named_tokens(self) -> frozenset[int]:
        """Special tokens that the decoded text must contain, since the readers look for them."""
        parts = (part for part in (self.thought, self.offer) if part is not None)
        return frozenset().union(*(part.named_tokens for part in parts))

    @property
    def schemas(self) -> tuple[Grammar, ...]:
        """JSON Schemas of the tools' arguments, where `grammar` includes calls."""
        return () if self.offer is None else self.offer.schemas

    def grammar(self, form: Grammar | None) -> Grammar | None:
        """The grammar of the whole answer; None if there is no rule for it.

        `form` is what the client asks for; with an offer, the offer's grammar takes its place.
        """
        if self.offer is not None:
            form = self.offer.grammar
        if self.thought is None:
            return form
        return self.thought.before(form, calls=self.offer is not None)

    def reader(self) -> ChatReader:
        """A new reader; every answer needs its own."""
        return ChatReader(
            None if self.thought is None else self.thought.reader(),
            None if self.offer is None else self.offer.reader(),
            hidden=self.hidden,
        )


PLAIN = Reading()


class ChatReader:
    """Splits one answer into parts."""

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
        self._token_places = TokenPlaces()
        self._tokens = 0
        self._unassigned: list[int] = []  # tokens whose text is not yet assigned to a part

    @property
    def reasoning_tokens(self) -> int | None:
        """Number of reasoning tokens so far; None if the answer is not read for reasoning."""
        if self._reasoning is None:
            return None
        return sum(self._token_places.within(span) for span in self._reasoning.spans)

    @property
    def calls(self) -> int:
        """Number of tool calls that have begun."""
        return 0 if self._calls is None else self._calls.calls

    def feed(self, texts: Sequence[str], *, ends: bool) -> Parts:
        """Takes the texts of the next tokens; returns the parts that are certain by now.

        If the tokens are the last (`ends`), text that was held back is returned as well.
        """
        self._token_places.add(texts)
        parts: list[Part] = []
        for text in texts:
            stage = self._stage
            found = self._read(text)
            if mark_passed := self._stage != stage:  # unassigned tokens were marks
                self._unassigned = []
            if found or not mark_passed:
                self._unassigned.append(self._tokens)
            self._tokens += 1
            self._append_parts(found, parts)
        if ends:
            self._append_parts(self._flush(), parts)
        return Parts.of(parts)

    @property
    def _stage(self) -> object:
        return [reader.stage for reader in (self._reasoning, self._calls) if reader is not None]

    def _read(self, text: str) -> Parts:
        parts = Parts([Content(text)]) if self._reasoning is None else self._reasoning.feed(text)
        return self._split_calls(parts)

    def _flush(self) -> Parts:
        """The parts of text that was held back."""
        parts = Parts()
        if self._reasoning is not None:
            parts = self._split_calls(self._reasoning.finish())
        if self._calls is not None:
            parts.extend(self._calls.finish())
        return parts

    def _split_calls(self, parts: Parts) -> Parts:
        """The same parts, with tool calls separated from content."""
        if self._calls is None:
            return parts
        split = Parts()
        for part in parts:
            if isinstance(part, Content):
                split.extend(self._calls.feed(part.text))
            else:
                split.extend(self._calls.break_off())
                split.append(part)
        return split

    def _append_parts(self, found: Sequence[Part], parts: list[Part]) -> None:
        """Appends the parts found, and assigns the unassigned tokens to the first of them.

        Content that came together with reasoning gets no tokens: the text of one of them may be
        reasoning, which must not show beside content.
        """
        has_reasoning = any(isinstance(part, Reasoning) for part in found)
        for part in found:
            if isinstance(part, Content):
                part = Content(part.text, () if has_reasoning else tuple(self._unassigned))
            self._unassigned = []
            if not (self._hidden and isinstance(part, Reasoning)):
                parts.append(part)
