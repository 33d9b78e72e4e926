"""Text that comes again: a passage of a training file, then further versions of it.

`python -m models.revise --tokens 1200000` writes records of a passage and then, as often as fits, a
comment and the passage with one of its names changed, so that a small model learns to follow what
stands before it, as large ones do: editing is copying with few changes. Neither held-out files nor
the words in which the benchmark announces its renaming are among them.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from keyword import iskeyword

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tqdm import tqdm

from models.layout import REVISED_TOKENS, TOKENIZER_FILE, TRAIN_TOKENS
from models.packing import BLOCK
from models.tokenizer import END_OF_TEXT_ID

# Records fill a block, so that none is cut where windows are as long as it is: (length, share).
LENGTHS, SHARES = (512, 1024, 2048), (0.5, 0.35, 0.15)
# Of a record, its first version takes so much; the rest is further ones, the last of them cut.
LEAST_PASSAGE, MOST_PASSAGE = 0.15, 0.45
NAME = re.compile(r"\b[A-Za-z_]{4,}\b")
# Many ways to say it and to name it: with four of each, a model copied after those comments alone.
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
# Of the versions so many change nothing, and so many leave out some lines as well.
UNCHANGED, SHORTENED = 0.1, 0.1
LINES_LEFT_OUT = 0.1


def renaming(passage: str, draw: np.random.Generator) -> tuple[str, str]:
    """One of the commonest names of a passage, and a new one for it."""
    found = Counter(name for name in NAME.findall(passage) if not iskeyword(name))
    names = [name for name, _ in found.most_common(6)] or ["self"]
    old = names[draw.integers(len(names))]
    word, other = (WORDS[draw.integers(len(WORDS))] for _ in range(2))
    form = NEW_NAMES[draw.integers(len(NEW_NAMES))]
    return old, form.format(old=old, word=word, other=other, digit=draw.integers(10))


def revised(passage: str, draw: np.random.Generator) -> str:
    """A comment, and the passage, mostly with one of its commonest names changed."""
    old, new = renaming(passage, draw)
    verb = VERBS[draw.integers(len(VERBS))]
    comment = COMMENTS[draw.integers(len(COMMENTS))].format(old=old, new=new, verb=verb)
    kind = draw.random()
    if kind < UNCHANGED:
        return f"# {verb}\n{passage}"
    text = re.sub(rf"\b{old}\b", new, passage)
    if kind < UNCHANGED + SHORTENED:
        lines = text.splitlines(keepends=True)
        text = "".join(line for line in lines if draw.random() >= LINES_LEFT_OUT)
    return f"{comment}\n{text}"


def record(
    tokenizer: Tokenizer, ids: list[int], length: int, draw: np.random.Generator
) -> list[int] | None:
    """`length` tokens: a passage of whole lines and its further versions; None where unsuited."""
    size = int(length * draw.uniform(LEAST_PASSAGE, MOST_PASSAGE))
    if len(ids) < 2 * length:
        return None
    begin = int(draw.integers(len(ids) - length))
    passage = tokenizer.decode(ids[begin : begin + size]).partition("\n")[2].rpartition("\n")[0]
    if passage.count("\n") < 4:
        return None
    versions = [revised(passage, draw) for _ in range(length // size + 1)]
    text = "\n\n".join([passage, *versions])
    written = [END_OF_TEXT_ID, *tokenizer.encode(text).ids][:length]
    return written if len(written) == length else None


def training_texts() -> list[list[int]]:
    """The tokens of every training file."""
    stream = np.load(TRAIN_TOKENS)
    begins = np.flatnonzero(stream == END_OF_TEXT_ID)
    return [part[1:].tolist() for part in np.split(stream, begins[1:])]


def records(tokens: int, seed: Sequence[int]) -> npt.NDArray[np.int16]:
    """At least so many tokens, in whole blocks of records of one length."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    texts = training_texts()
    draw = np.random.default_rng(seed)
    chances = np.array([len(ids) for ids in texts]) / sum(len(ids) for ids in texts)
    blocks: list[list[int]] = []
    for _ in tqdm(range(-(-tokens // BLOCK)), desc="revising"):
        length = int(draw.choice(LENGTHS, p=SHARES))
        block: list[int] = []
        while len(block) < BLOCK:
            ids = texts[draw.choice(len(texts), p=chances)]
            block += record(tokenizer, ids, length, draw) or []
        blocks.append(block)
    return np.array(blocks, dtype=np.int16).reshape(-1)


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
        np.save(REVISED_TOKENS, np.concatenate(list(parts)))


if __name__ == "__main__":
    main()
