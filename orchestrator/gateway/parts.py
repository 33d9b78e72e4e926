"""What some text of an answer made certain, in the order in which it stands there."""

from __future__ import annotations

from typing import NamedTuple


class Reasoning(NamedTuple):
    """What the answer thinks before it says something."""

    text: str


class Content(NamedTuple):
    """What it says. `tokens`: by their numbers in the answer, those whose text this is."""

    text: str
    tokens: tuple[int, ...] = ()


class CallPart(NamedTuple):
    """Of one call: the first has id and name, and each some more of the arguments' text."""

    call: int
    call_id: str
    name: str
    arguments: str


Part = Reasoning | Content | CallPart


class Parts(list[Part]):
    """Neighbours that belong together are one."""

    def add(self, part: Part) -> None:
        """The next one, unless it says nothing."""
        last = self[-1] if self else None
        match last, part:
            case _, Reasoning("") | Content(""):
                pass
            case Reasoning(before), Reasoning(text):
                self[-1] = Reasoning(before + text)
            case Content(before, first), Content(text, tokens):
                self[-1] = Content(before + text, first + tokens)
            case CallPart(), CallPart(name="") if last.call == part.call:
                self[-1] = last._replace(arguments=last.arguments + part.arguments)
            case _:
                self.append(part)

    @property
    def reasoning(self) -> str:
        """All of it."""
        return "".join(part.text for part in self if isinstance(part, Reasoning))

    @property
    def content(self) -> str:
        """All of it."""
        return "".join(part.text for part in self if isinstance(part, Content))

    @property
    def calls(self) -> list[CallPart]:
        """All of them."""
        return [part for part in self if isinstance(part, CallPart)]
