"""Prints the dependencies of an installation with extras: `python -m requirements EXTRA…`.

The images install libraries in a separate layer, so that changed code downloads nothing again.
Needs only the standard library. Run it in the folder that holds pyproject.toml.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

OURS = re.compile(r"draftloop\[([\w,-]+)\]")


def requirements(extras: list[str]) -> list[str]:
    """The sorted requirements of the base and of the extras, with nested extras expanded."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = dict.fromkeys(project["dependencies"])
    waiting = list(extras)
    while waiting:
        for requirement in project["optional-dependencies"][waiting.pop()]:
            if nested := OURS.fullmatch(requirement):
                waiting += nested[1].split(",")
            else:
                found[requirement] = None
    return sorted(found)


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(sys.argv[1:])) + "\n")
