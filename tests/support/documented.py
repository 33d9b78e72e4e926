"""The shell commands that README and docs name in fences."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from tests.contract.repository import ROOT, documents, fenced

SHELL = ("sh", "bash", "console")


class Command(NamedTuple):
    """One command of a page, as a shell would split it."""

    page: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """As the page has it, without comments."""
        return shlex.join(self.words)


def documented_commands() -> list[Command]:
    """All of them, page by page, in the order in which a reader would type them."""
    return [
        Command(page.relative_to(ROOT).as_posix(), words)
        for page in documents()
        for body in fenced(page, *SHELL)
        for line in body.replace("\\\n", " ").splitlines()
        if (words := tuple(shlex.split(line, comments=True)))
    ]
