"""Random tokens that are repeated: text that can be predicted only by copying teaches copying.

`python -m models.repeat --tokens 1200000` writes records. A record is a passage of random tokens,
then, as often as fits, the passage again with one token replaced by another or a part left out. In
real text, a model can often predict without the earlier tokens, so that it learns to copy late and
only partly; here nothing else helps. (Induction heads: Olsson et al., arXiv 2209.11895.)
"""

from __future__ import annotations

import argparse

import numpy as np
from tqdm import tqdm

from models import token_file
from models.layout import REPEATED_TOKENS
from models.packing import BLOCK
from models.revise import LENGTHS, SHARES
from models.token_file import Tokens
from models.tokenizer import END_OF_TEXT_ID, VOCABULARY

# In a passage of few different tokens, the last token alone does not determine the next one.
MIN_RECORD_SYMBOLS, MAX_RECORD_SYMBOLS = 16, 1024
MIN_PASSAGE, MAX_PASSAGE = 0.1, 0.35  # share of a record; the rest is further versions
CHANGED, SHORTENED = 0.6, 0.3  # shares of the versions


def version(passage: Tokens, draw: np.random.Generator) -> Tokens:
    """The passage, sometimes with one token replaced throughout or with a part left out."""
    again = passage.copy()
    if draw.random() < CHANGED:
        old, new = draw.choice(passage), draw.integers(1, VOCABULARY)
        again[again == old] = new
    if draw.random() < SHORTENED:
        begin, end = np.sort(draw.integers(0, len(again), 2))
        again = np.concatenate([again[:begin], again[end:]])
    return again


def record(length: int, draw: np.random.Generator) -> Tokens:
    """`length` tokens: a passage of few or many different tokens, and further versions of it."""
    count = int(np.exp(draw.uniform(np.log(MIN_RECORD_SYMBOLS), np.log(MAX_RECORD_SYMBOLS))))
    symbols = 1 + draw.choice(VOCABULARY - 1, count, replace=False)
    size = int(length * draw.uniform(MIN_PASSAGE, MAX_PASSAGE))
    passage = symbols[draw.integers(0, count, size)].astype(np.int16)
    parts = [np.array([END_OF_TEXT_ID], dtype=np.int16), passage]
    while sum(map(len, parts)) < length:
        parts.append(version(passage, draw))
    return np.concatenate(parts)[:length]


def records(tokens: int, seed: int) -> Tokens:
    """At least `tokens` tokens, in whole blocks of records of one length."""
    draw = np.random.default_rng(seed)
    parts: list[Tokens] = []
    for _ in tqdm(range(-(-tokens // BLOCK)), desc="repeating"):
        length = int(draw.choice(LENGTHS, p=SHARES))
        parts += [record(length, draw) for _ in range(BLOCK // length)]
    return np.concatenate(parts)


def main() -> None:
    """Parses the command line and writes the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    token_file.write(REPEATED_TOKENS, records(options.tokens, options.seed))


if __name__ == "__main__":
    main()
