"""`WrittenPage`: the generated parts of a page are renewed, and the rest stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.written_page import WrittenPage

PAGE = """# Page
<!-- a: written by `make docs` -->
old
<!-- /a -->
by hand
<!-- b: written by `make docs` -->
<!-- /b -->
"""


def page(folder: Path, *subjects: str) -> WrittenPage:
    file = folder / "page.md"
    file.write_text(PAGE, encoding="utf-8")
    return WrittenPage(file, {subject: lambda: ["first", "second"] for subject in subjects})


def test_parts_are_renewed_and_the_rest_is_kept(tmp_path: Path) -> None:
    found = page(tmp_path, "a", "b")
    part = "\n\nfirst\n\nsecond\n\n"
    marks = [f"<!-- {name}: written by `make docs` -->{part}<!-- /{name} -->" for name in "ab"]
    assert found.fresh == f"# Page\n{marks[0]}\nby hand\n{marks[1]}\n"


def test_a_part_without_marks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no marks of c"):
        _ = page(tmp_path, "c").fresh
