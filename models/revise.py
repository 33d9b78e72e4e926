"""Text that comes again: a passage of a training file, then further versions of it.

`python -m models.revise --tokens 1200000` writes records of a passage and then, as often as fits, a
comment and the passage with one of its names changed, so that a small model learns to follow what
stands before it, as large ones do: editing is copying with few changes. Held-out files are not
among them.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from keyword import iskeyword

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tqdm import tqdm

from models.corpus import load
from models.layout import REVISED_TOKENS, TOKENIZER_FILE
from models.packing import BLOCK
from models.tokenizer import END_OF_TEXT_ID

# Records fill a block, so that none is cut where windows are as long as it is: (length, share).
LENGTHS, SHARES = (512, 1024, 2048), (0.5, 0.35, 0.15)
# Of a record, its first version takes so much; the rest is further ones, the last of them cut.
LEAST_PASSAGE, MOST_PASSAGE = 0.15, 0.45
NAME = re.compile(r"\b[A-Za-z_]{4,}\b")
COMMENTS = (
    "# {old} is called {new} from here on",
    "# version 2: {new} for {old}",
    "# once more, with {new}",
    "# now {old} -> {new}",
)
NEW_NAMES = ("{}_v2", "{}_impl", "my_{}", "the_{}", "_{}")


def revised(passage: str, draw: np.random.Generator) -> str:
    """The comment, and the passage with one of its commonest names changed."""
    found = Counter(name for name in NAME.findall(passage) if not iskeyword(name))
    names = [name for name, _ in found.most_common(6)] or ["self"]
    old = names[draw.integers(len(names))]
    new = NEW_NAMES[draw.integers(len(NEW_NAMES))].format(old)
    comment = COMMENTS[draw.integers(len(COMMENTS))].format(old=old, new=new)
    return f"{comment}\n" + re.sub(rf"\b{old}\b", new, passage)


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


def records(tokens: int, seed: int) -> npt.NDArray[np.int16]:
    """At least so many tokens, in whole blocks of records of one length."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    texts = [tokenizer.encode(document.text).ids for document in load()[0]]
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
    options = parser.parse_args()
    np.save(REVISED_TOKENS, records(options.tokens, options.seed))


if __name__ == "__main__":
    main()
