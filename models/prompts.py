"""Prompts cut from held-out files, each with the text that follows it in the file.

`python -m models.prompts` writes `held_out_prompts.jsonl`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from models.corpus import Document, load
from models.layout import HELD_OUT_PROMPTS
from models.tokenizer import trained

SHORTEST, LONGEST = 150, 400  # tokens of a prompt
REFERENCE = 200  # tokens of the reference continuation
WANTED = 100
OPENERS = ("def ", "class ", "@", "import ", "from ", "async def ")
# Files that the demo shows first: plain, readable code.
DEMO = ("sched.py", "xml/sax/xmlreader.py", "test/test_ttk_textonly.py")
# Held out by name, but most of it is in a training file too: `wave.py` copied its class.
SEEN = frozenset(["chunk.py"])

Measure = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A cut through a held-out file; `prompt + reference` is verbatim text of the file."""

    file: str
    prompt: str
    reference: str


def wanted_length(name: str, number: int) -> int:
    """Tokens that cut `number` of a file should have, drawn from its name."""
    digest = hashlib.sha256(f"{name}#{number}".encode()).digest()
    return SHORTEST + int.from_bytes(digest[:4], "big") % (LONGEST - SHORTEST)


def ends_inside_code(before: list[str], after: str) -> bool:
    """Whether a cut between `before` and `after` leaves an indented block open, not a string."""
    text = "".join(before)
    last = before[-1].strip()
    quotes_closed = text.count('"""') % 2 == 0 and text.count("'''") % 2 == 0
    inside = bool(last) and not last.startswith("#") and after.startswith((" ", "\t"))
    return inside and bool(after.strip()) and quotes_closed


def run_of_lines(lines: list[str], first: int, tokens: int, measure: Measure) -> int:
    """The index after the shortest run of lines from `first` that has `tokens` tokens."""
    total = 0
    for index in range(first, len(lines)):
        total += measure(lines[index])
        if total >= tokens:
            return index + 1
    return len(lines) + 1  # not enough lines


def cut(lines: list[str], first: int, tokens: int, measure: Measure) -> tuple[int, int] | None:
    """(end of the prompt, end of the reference) for a prompt that starts at line `first`."""
    end = run_of_lines(lines, first, tokens, measure)
    while end < len(lines) and not ends_inside_code(lines[first:end], lines[end]):
        end += 1
    stop = run_of_lines(lines, end, REFERENCE, measure)
    if stop > len(lines) or measure("".join(lines[first:end])) > LONGEST:
        return None
    return end, stop


def cuts(document: Document, measure: Measure) -> Iterator[Prompt]:
    """Prompts of one file that do not overlap, each from the start of a top-level statement."""
    lines = document.text.splitlines(keepends=True)
    position = number = 0
    for first, line in enumerate(lines):
        if first < position or not line.startswith(OPENERS):
            continue
        tokens = wanted_length(document.name, number)
        if found := cut(lines, first, tokens, measure):
            end, position = found
            number += 1
            yield Prompt(document.name, "".join(lines[first:end]), "".join(lines[end:position]))


def choose(documents: list[Document], measure: Measure, wanted: int = WANTED) -> list[Prompt]:
    """One prompt per file, then second ones and so on up to `wanted`; the demo's files first."""
    unseen = (document for document in documents if document.name not in SEEN)
    by_file = [list(cuts(document, measure)) for document in unseen]
    deepest = max(len(prompts) for prompts in by_file)
    rounds = [
        prompts[depth] for depth in range(deepest) for prompts in by_file if depth < len(prompts)
    ]
    demo = [next(prompt for prompt in rounds if prompt.file == name) for name in DEMO]
    return (demo + [prompt for prompt in rounds if prompt not in demo])[:wanted]


def main() -> None:
    """Writes the prompts."""
    tokenizer = trained()
    _, held_out = load()
    prompts = choose(held_out, lambda text: len(tokenizer.encode(text).ids))
    lines = [json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts]
    HELD_OUT_PROMPTS.write_text("".join(lines), encoding="utf-8")
    files = len({prompt.file for prompt in prompts})
    sys.stdout.write(f"{len(prompts)} prompts from {files} files\n")


if __name__ == "__main__":
    main()
