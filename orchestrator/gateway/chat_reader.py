"""An answer of a chat, taken apart while it grows: reasoning, content, calls of tools."""

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
        self._tokens = 0
        self._unclear: list[int] = []  # tokens of which is not known what their text is

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
        parts: list[Part] = []
        for text in texts:
            stage = self._stage
            found = self._read(text)
            if passed := self._stage != stage:  # what is not clear yet was of the marks between
                self._unclear = []
            if found or not passed:
                self._unclear.append(self._tokens)
            self._tokens += 1
            self._tell(found, parts)
        if ends:
            self._tell(self._rest(), parts)
        return Parts.of(parts)

    @property
    def _stage(self) -> object:
        return [reader.stage for reader in (self._reasoning, self._calls) if reader is not None]

    def _read(self, text: str) -> Parts:
        said = Parts([Content(text)]) if self._reasoning is None else self._reasoning.feed(text)
        return self._with_calls(said)

    def _rest(self) -> Parts:
        """What was held back."""
        parts = Parts()
        if self._reasoning is not None:
            parts = self._with_calls(self._reasoning.finish())
        if self._calls is not None:
            parts.extend(self._calls.finish())
        return parts

    def _with_calls(self, said: Parts) -> Parts:
        """The same, its content read for calls."""
        if self._calls is None:
            return said
        parts = Parts()
        for part in said:
            if isinstance(part, Content):
                parts.extend(self._calls.feed(part.text))
            else:
                parts.extend(self._calls.break_off())
                parts.append(part)
        return parts

    def _tell(self, found: Sequence[Part], parts: list[Part]) -> None:
        """Adds what was found; tokens that are not clear yet are its.

        One whose text is of reasoning and content is the reasoning's, of which content must not
        tell.
        """
        mixed = any(isinstance(part, Reasoning) for part in found)
        for part in found:
            if isinstance(part, Content):
                part = Content(part.text, () if mixed else tuple(self._unclear))
            self._unclear = []
            if not (self._hidden and isinstance(part, Reasoning)):
                parts.append(part)
