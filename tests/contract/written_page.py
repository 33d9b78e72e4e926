"""Pages of the docs with parts that are generated from code or records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.contract.repository import ROOT


@dataclass(frozen=True)
class WrittenPage:
    """A page in which each of `parts` stands between two marks; the rest is written by hand."""

    path: Path
    parts: Mapping[str, Callable[[], list[str]]]

    @property
    def text(self) -> str:
        """The page as it is on disk."""
        return self.path.read_text(encoding="utf-8")

    @property
    def fresh(self) -> str:
        """The page with all parts generated anew. Raises ValueError if a mark is missing."""
        text = self.text
        for subject, paragraphs in self.parts.items():
            begin, end = f"<!-- {subject}: written by `make docs` -->\n", f"<!-- /{subject} -->"
            before, begin_found, rest = text.partition(begin)
            _, end_found, after = rest.partition(end)
            if not (begin_found and end_found):
                raise ValueError(f"{self.path}: no marks of {subject}")
            text = f"{before}{begin}\n" + "\n\n".join(paragraphs()) + f"\n\n{end}{after}"
        return text

    def write(self) -> None:
        """Writes the fresh page."""
        self.path.write_text(self.fresh, encoding="utf-8")
        sys.stdout.write(f"wrote {self.path.relative_to(ROOT)}\n")
