"""Repeated text: a passage of a training file, then further versions of it.

`python -m models.revise --tokens 1200000` writes records. A record is a passage, then, as often as
fits, a comment and the passage with one of its names changed. A small model learns from them to
follow earlier text, as large models do: editing is copying with few changes. Some versions contain
slips and lines from elsewhere, after which they continue as before, so that a model learns to go on
after it has sampled something wrong itself. Held-out files are excluded, and so are the words with
which the benchmark announces its renaming.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from keyword import iskeyword

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from models import token_file
from models.layout import REVISED_TOKENS, TRAIN_TOKENS
from models.packing import BLOCK
from models.token_file import Tokens
from models.tokenizer import END_OF_TEXT_ID, VOCABULARY, trained

# Lengths of records and their shares. Records fill a block, so that none is cut by windows of a
# block's length.
LENGTHS, SHARES = (512, 1024, 2048), (0.35, 0.4, 0.25)
# Share of a record for its first version; the rest is further ones, the last of them cut.
MIN_PASSAGE, MAX_PASSAGE = 0.15, 0.45
NAME = re.compile(r"\b[A-Za-z_]{4,}\b")
# Many comments and forms of names: with four of each, a model copied only after those comments.
COMMENTS = (
    "# {old} is called {new} from here on",
    "# version 2: {new} for {old}",
    "# once more, with {new}",
    "# now {old} -> {new}",
    "# {verb} {old}: {new}",
    "# {verb} {old} to {new}",
    "# {verb} {old} by {new}",
    "# {new} (was {old})",
    "# {old} becomes {new}",
    "# {old} => {new}",
    "# the same with {new} instead of {old}",
    "# TODO: {verb} {old}, {new} says more",
    "# s/{old}/{new}/",
    "## {new}",
    "# ---- {old} / {new} ----",
    '"""{old}, to be known as {new}."""',
)
VERBS = ("rename", "replace", "change", "substitute", "turn", "edit", "refactor")
WORDS = (
    "base", "cache", "client", "core", "count", "current", "data", "default", "extra", "fast",
    "final", "first", "found", "full", "given", "inner", "item", "known", "large", "last", "left",
    "local", "main", "made", "many", "next", "node", "old", "other", "outer", "own", "part",
    "path", "plain", "point", "raw", "real", "right", "root", "safe", "same", "second", "self",
    "set", "simple", "size", "small", "state", "step", "temp", "test", "that", "this", "thing",
    "total", "true", "used", "user", "value", "whole", "with", "work",
)  # fmt: skip
NEW_NAMES = (
    "{old}_v2",
    "{old}_impl",
    "my_{old}",
    "the_{old}",
    "_{old}",
    "{old}_",
    "{old}{digit}",
    "{word}_{old}",
    "{word}_{old}",
    "{old}_{word}",
    "{word}_{other}",
    "{word}",
)
# Shares of the versions that change nothing, and of those that also leave out some lines.
UNCHANGED, SHORTENED = 0.1, 0.1
LINES_LEFT_OUT = 0.1
# Share of the records that begin in the middle of a text, as prompts do.
BEGUN_BEFORE = 0.5
# Shares of the further versions that follow an unrelated comment, and of those with lines from
# elsewhere inserted.
MISANNOUNCED, LENGTHENED = 0.3, 0.15
LINES_PUT_IN = 0.05
# Share of the tokens of further versions that are replaced at random.
SLIPS = 0.01


def drawn(texts: Sequence[str], draw: np.random.Generator) -> str:
    """A random one of the texts."""
    return texts[int(draw.integers(len(texts)))]


def renaming(passage: str, draw: np.random.Generator) -> tuple[str, str]:
    """One of the most common names of a passage, and a new name for it."""
    found = Counter(name for name in NAME.findall(passage) if not iskeyword(name))
    old = drawn([name for name, _ in found.most_common(6)] or ["self"], draw)
    word, other = (drawn(WORDS, draw) for _ in range(2))
    form = drawn(NEW_NAMES, draw)
    return old, form.format(old=old, word=word, other=other, digit=draw.integers(10))


def revised(passage: str, draw: np.random.Generator) -> str:
    """A comment and the passage, mostly with one of its most common names changed."""
    old, new = renaming(passage, draw)
    verb = drawn(VERBS, draw)
    comment = drawn(COMMENTS, draw).format(old=old, new=new, verb=verb)
    kind = draw.random()
    if kind < UNCHANGED:
        return f"# {verb}\n{passage}"
    text = re.sub(rf"\b{old}\b", new, passage)
    if kind < UNCHANGED + SHORTENED:
        lines = text.splitlines(keepends=True)
        text = "".join(line for line in lines if draw.random() >= LINES_LEFT_OUT)
    return f"{comment}\n{text}"


@dataclass(frozen=True, slots=True)
class Source:
    """Material for records: training files as tokens, and some of their lines."""

    tokenizer: Tokenizer
    texts: Sequence[Sequence[int]]
    comments: Sequence[str]
    lines: Sequence[str]

    @classmethod
    def load(cls) -> Source:
        """All training files; every eighth of their lines."""
        tokenizer = trained()
        stream = token_file.read(TRAIN_TOKENS, by="models.tokenizer")
        begins = np.flatnonzero(stream == END_OF_TEXT_ID)
        texts = [part[1:].tolist() for part in np.split(stream, begins[1:])]
        lines = "".join(tokenizer.decode_batch(texts)).splitlines(keepends=True)[::8]
        comments = [line for line in lines if line.startswith("# ")]
        return cls(tokenizer, texts, comments, lines)

    def version(self, passage: str, draw: np.random.Generator) -> str:
        """A further version for a record; its comment may be an unrelated one."""
        comment, text = revised(passage, draw).split("\n", 1)
        if draw.random() < MISANNOUNCED:
            comment = drawn(self.comments, draw).rstrip()
        if draw.random() < LENGTHENED:
            text = "".join(self._lengthened(text.splitlines(keepends=True), draw))
        return f"{comment}\n{text}"

    def _lengthened(self, lines: Sequence[str], draw: np.random.Generator) -> Iterator[str]:
        for line in lines:
            if draw.random() < LINES_PUT_IN:
                yield drawn(self.lines, draw)
            yield line

    def record(self, ids: Sequence[int], length: int, draw: np.random.Generator) -> Tokens | None:
        """`length` tokens: whole lines and further versions of them; None if `ids` do not suit."""
        size = int(length * draw.uniform(MIN_PASSAGE, MAX_PASSAGE))
        if len(ids) < 2 * length:
            return None
        begin = int(draw.integers(len(ids) - length))
        decoded = self.tokenizer.decode(ids[begin : begin + size])
        passage = decoded.partition("\n")[2].rpartition("\n")[0]
        if passage.count("\n") < 4:
            return None
        versions = [self.version(passage, draw) for _ in range(length // size + 1)]
        first = self.tokenizer.encode(f"{passage}\n\n").ids
        again = np.array(self.tokenizer.encode("\n\n".join(versions)).ids, dtype=np.int16)
        slips = draw.random(len(again)) < SLIPS
        again[slips] = draw.integers(1, VOCABULARY, slips.sum())
        head = [] if draw.random() < BEGUN_BEFORE else [END_OF_TEXT_ID]
        written = np.concatenate([np.array([*head, *first], dtype=np.int16), again])[:length]
        return written if len(written) == length else None


def records(tokens: int, seed: Sequence[int]) -> Tokens:
    """At least `tokens` tokens, in whole blocks of records of one length."""
    source = Source.load()
    draw = np.random.default_rng(seed)
    sizes = np.array([len(ids) for ids in source.texts])
    chances = sizes / sizes.sum()
    made: list[Tokens] = []
    for _ in tqdm(range(-(-tokens // BLOCK)), desc="revising"):
        length = int(draw.choice(LENGTHS, p=SHARES))
        left = BLOCK // length
        while left:
            ids = source.texts[draw.choice(len(sizes), p=chances)]
            if (written := source.record(ids, length, draw)) is not None:
                made.append(written)
                left -= 1
    return np.concatenate(made)


def main() -> None:
    """Parses the command line and writes the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args()
    share = -(-options.tokens // options.workers)
    seeds = [(options.seed, worker) for worker in range(options.workers)]
    with ProcessPoolExecutor(options.workers) as workers:
        parts = workers.map(records, [share] * options.workers, seeds)
        token_file.write(REVISED_TOKENS, np.concatenate(list(parts)))


if __name__ == "__main__":
    main()
