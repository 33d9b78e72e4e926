"""Pages of the docs with parts that come from the code, or from records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.contract.repository import ROOT


@dataclass(frozen=True)
class WrittenPage:
    """Each of `parts` stands between two marks that name its subject; the rest is by hand."""

    path: Path
    parts: Mapping[str, Callable[[], list[str]]]

    @property
    def text(self) -> str:
        """As it lies there."""
        return self.path.read_text(encoding="utf-8")

    @property
    def fresh(self) -> str:
        """With all parts as they are now. Raises ValueError where a mark is missing."""
        text = self.text
        for subject, paragraphs in self.parts.items():
            begin, end = f"<!-- {subject}: written by `make docs` -->\n", f"<!-- /{subject} -->"
            before, begun, rest = text.partition(begin)
            _, ended, after = rest.partition(end)
            if not (begun and ended):
                raise ValueError(f"{self.path}: no marks of {subject}")
            text = f"{before}{begin}\n" + "\n\n".join(paragraphs()) + f"\n\n{end}{after}"
        return text

    def write(self) -> None:
        """Renews the parts."""
        self.path.write_text(self.fresh, encoding="utf-8")
        sys.stdout.write(f"wrote {self.path.relative_to(ROOT)}\n")
