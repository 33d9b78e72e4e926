"""Shell commands in fenced blocks of README and docs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from tests.contract.repository import ROOT, documents, fenced

SHELL = ("sh", "bash", "console")


class Command(NamedTuple):
    """One command of a page, split as a shell would."""

    page: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The command as on the page, without comments."""
        return shlex.join(self.words)


def documented_commands() -> list[Command]:
    """All commands, page by page, in the order in which a reader types them."""
    return [
        Command(page.relative_to(ROOT).as_posix(), words)
        for page in documents()
        for body in fenced(page, *SHELL)
        for line in _lines(body.replace("\\\n", " "))
        if (words := tuple(shlex.split(line, comments=True)))
    ]


def _lines(body: str) -> Iterator[str]:
    """Line by line; the body of a loop is repeated for every value of its variable."""
    before = 0
    for loop in re.finditer(r"^for (\w+) in (.*); do\n(.*?)^done$", body, re.DOTALL | re.MULTILINE):
        yield from body[before : loop.start()].splitlines()
        name, values, inside = loop.groups()
        for value in values.split():
            yield from inside.replace(f"${name}", value).splitlines()
        before = loop.end()
    yield from body[before:].splitlines()
