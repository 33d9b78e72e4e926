"""The corpus: the Python standard library's own sources, split by file name.

`python -m models.corpus` writes `held_out.txt` and prints what it found.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from models.layout import HELD_OUT_LIST

HELD_OUT_SHARE = 0.05
FOREIGN_PARTS = frozenset({"site-packages", "dist-packages", "__pycache__"})
# Generated tables and one long text: they cost tokens and teach nothing about code.
TABLES = ("encodings/", "pydoc_data/")
MIN_LETTER_SHARE = 0.25
# Environment variable for machines with another Python than the one of the bundled models' corpus.
SOURCES = "STANDARD_LIBRARY"


@dataclass(frozen=True, slots=True, order=True)
class Document:
    """One source file; `name` is its posix path below the standard library."""

    name: str
    text: str


def is_held_out(name: str, share: float = HELD_OUT_SHARE) -> bool:
    """Whether the file called `name` is excluded from training: a pure function of the name."""
    digest = hashlib.sha256(PurePosixPath(name).as_posix().encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def is_table(name: str, text: str) -> bool:
    """Whether a file is data rather than code: a known table, or mostly digits and punctuation."""
    if name.startswith(TABLES):
        return True
    visible = sum(not character.isspace() for character in text)
    letters = sum(character.isalpha() for character in text)
    return letters < MIN_LETTER_SHARE * max(visible, 1)


def standard_library() -> Path:
    """The running interpreter's standard library, or the one whose folder `SOURCES` names."""
    return Path(os.environ.get(SOURCES) or sysconfig.get_paths()["stdlib"])


def read_sources(root: Path) -> Iterator[Document]:
    """Every UTF-8 Python file below `root` in name order, without installed packages."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if FOREIGN_PARTS.intersection(relative.parts):
            continue
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue  # the library ships a few files in other encodings to test its own reader
        yield Document(relative.as_posix(), text.replace("\r\n", "\n"))


def select(documents: Iterable[Document]) -> list[Document]:
    """Drops empty files, tables and repeated contents (the first name stays)."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        if not document.text.strip() or document.text in seen:
            continue
        seen.add(document.text)
        if not is_table(document.name, document.text):
            kept.append(document)
    return kept


def split(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held-out) documents."""
    training: list[Document] = []
    held_out: list[Document] = []
    for document in documents:
        (held_out if is_held_out(document.name) else training).append(document)
    return training, held_out


def local_documents() -> tuple[list[Document], list[Document]]:
    """(training, held-out) documents of the standard library on this machine.

    Raises FileNotFoundError if there is none.
    """
    root = standard_library()
    documents = select(read_sources(root))
    if not documents:
        raise FileNotFoundError(
            f"{root} has no Python sources: {SOURCES} must name the folder of a standard library"
        )
    return split(documents)


def load() -> tuple[list[Document], list[Document]]:
    """(training, held-out) documents of the library on which the models were trained.

    Its held-out files are listed in `held_out.txt`. In another version of Python, a file that the
    models were trained on may have a name that is held out. Raises FileNotFoundError if some of the
    listed files are not here.
    """
    training, held_out = local_documents()
    listed = frozenset(HELD_OUT_LIST.read_text().splitlines())
    known = [document for document in held_out if document.name in listed]
    if missing := sorted(listed - {document.name for document in known}):
        raise FileNotFoundError(
            f"{standard_library()} lacks {len(missing)} of {len(listed)} held-out files, such as "
            f"{missing[0]}: {SOURCES} must name the folder of Python 3.11's library, its tests "
            "included; for models of another one, list its files by python -m models.corpus first"
        )
    return training, known


def main() -> None:
    """Writes the list of held-out files."""
    training, held_out = local_documents()
    HELD_OUT_LIST.write_text("".join(f"{document.name}\n" for document in held_out))
    for label, documents in (("training", training), ("held out", held_out)):
        megabytes = sum(len(document.text.encode()) for document in documents) / 1e6
        sys.stdout.write(f"{label}: {len(documents)} files, {megabytes:.2f} MB" + "\n")


if __name__ == "__main__":
    main()
