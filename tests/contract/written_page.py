"""A page of the docs whose tables come from the code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.contract.repository import ROOT


@dataclass(frozen=True)
class WrittenPage:
    """`tables` stand between two marks that name the subject; the rest is written by hand."""

    path: Path
    subject: str
    tables: Callable[[], list[str]]

    @property
    def text(self) -> str:
        """As it lies there."""
        return self.path.read_text(encoding="utf-8")

    @property
    def fresh(self) -> str:
        """With the tables as the code has them now."""
        begin, end = (
            f"<!-- {self.subject}: written by `make docs` -->\n",
            f"<!-- /{self.subject} -->",
        )
        before, _, rest = self.text.partition(begin)
        after = rest.partition(end)[2]
        return f"{before}{begin}\n" + "\n\n".join(self.tables()) + f"\n\n{end}{after}"

    def write(self) -> None:
        """Renews the tables."""
        self.path.write_text(self.fresh, encoding="utf-8")
        sys.stdout.write(f"wrote {self.path.relative_to(ROOT)}\n")
