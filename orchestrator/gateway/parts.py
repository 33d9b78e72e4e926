"""What some text of an answer made certain, in the order in which it stands there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
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

    @classmethod
    def of(cls, told: Iterable[Part]) -> Parts:
        """Of these. One by one every further one would copy all before it that it belongs to."""
        runs: list[list[Part]] = []
        for part in filter(_says_something, told):
            if runs and _belong_together(runs[-1][-1], part):
                runs[-1].append(part)
            else:
                runs.append([part])
        return cls(map(_as_one, runs))

    def add(self, part: Part) -> None:
        """The next one, unless it says nothing."""
        if not _says_something(part):
            return
        if self and _belong_together(self[-1], part):
            self[-1] = _as_one([self[-1], part])
        else:
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


def _says_something(part: Part) -> bool:
    return isinstance(part, CallPart) or bool(part.text)


def _belong_together(first: Part, second: Part) -> bool:
    match first, second:
        case CallPart(), CallPart():
            return not second.name and first.call == second.call
        case _:
            return type(first) is type(second)


def _as_one(run: Sequence[Part]) -> Part:
    """Of those that belong together."""
    match run[0]:
        case CallPart() as first:
            said = [part.arguments for part in run if isinstance(part, CallPart)]
            return first._replace(arguments="".join(said))
        case Reasoning():
            return Reasoning("".join(part.text for part in run if isinstance(part, Reasoning)))
        case Content():
            contents = [part for part in run if isinstance(part, Content)]
            tokens = chain.from_iterable(part.tokens for part in contents)
            return Content("".join(part.text for part in contents), tuple(tokens))
