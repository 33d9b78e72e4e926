"""Parts of an answer (reasoning, content, tool calls) in the order of its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple


class Reasoning(NamedTuple):
    """Text that the model thinks."""

    text: str


class Content(NamedTuple):
    """Text that the model says. `tokens`: its tokens, by their numbers in the answer."""

    text: str
    tokens: tuple[int, ...] = ()


class CallPart(NamedTuple):
    """A piece of call number `call`: the first has id and name, each has more of the arguments."""

    call: int
    call_id: str
    name: str
    arguments: str


Part = Reasoning | Content | CallPart


class Parts(list[Part]):
    """A list of parts in which neighbours that belong together are merged."""

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Parts:
        """Merges these parts. Adding them one by one would copy the merged text each time."""
        runs: list[list[Part]] = []
        for part in filter(_has_content, parts):
            if runs and _can_merge(runs[-1][-1], part):
                runs[-1].append(part)
            else:
                runs.append([part])
        return cls(map(_merge, runs))

    def add(self, part: Part) -> None:
        """Adds the next part, unless it is empty."""
        if not _has_content(part):
            return
        if self and _can_merge(self[-1], part):
            self[-1] = _merge([self[-1], part])
        else:
            self.append(part)

    @property
    def reasoning(self) -> str:
        """The text of all reasoning."""
        return "".join(part.text for part in self if isinstance(part, Reasoning))

    @property
    def content(self) -> str:
        """The text of all content."""
        return "".join(part.text for part in self if isinstance(part, Content))

    @property
    def calls(self) -> list[CallPart]:
        """The pieces of all calls."""
        return [part for part in self if isinstance(part, CallPart)]


def _has_content(part: Part) -> bool:
    return isinstance(part, CallPart) or bool(part.text)


def _can_merge(first: Part, second: Part) -> bool:
    match first, second:
        case CallPart(), CallPart():
            return not second.name and first.call == second.call
        case _:
            return type(first) is type(second)


def _merge(run: Sequence[Part]) -> Part:
    """Merges parts that belong together."""
    match run[0]:
        case CallPart() as first:
            arguments = [part.arguments for part in run if isinstance(part, CallPart)]
            return first._replace(arguments="".join(arguments))
        case Reasoning():
            return Reasoning("".join(part.text for part in run if isinstance(part, Reasoning)))
        case Content():
            contents = [part for part in run if isinstance(part, Content)]
            tokens = chain.from_iterable(part.tokens for part in contents)
            return Content("".join(part.text for part in contents), tuple(tokens))
