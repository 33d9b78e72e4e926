"""The tokens that a run trains on: training files, and shares of text derived from them."""

from __future__ import annotations

import argparse

from models import token_file
from models.layout import REPEATED_TOKENS, REVISED_TOKENS, TRAIN_TOKENS
from models.packing import Mixture, Windows
from models.sample import sampled_stream
from models.token_file import Tokens


def add_share_options(parser: argparse.ArgumentParser) -> None:
    """Adds options for the shares of the text."""
    for made, by in (("sampled", "sample"), ("revised", "revise"), ("repeated", "repeat")):
        parser.add_argument(
            f"--{made}-share", type=float, default=0.0, help=f"0 to 1, of text by models.{by}"
        )


def training_text(options: argparse.Namespace) -> Windows | Mixture:
    """The text that the options describe.

    Raises FileNotFoundError if some of it was not made yet, and ValueError if shares add up to more
    than 1.
    """
    parts: list[tuple[Tokens, float]] = []
    if options.sampled_share:
        parts.append((sampled_stream(), options.sampled_share))
    if options.revised_share:
        parts.append((token_file.read(REVISED_TOKENS, by="models.revise"), options.revised_share))
    if options.repeated_share:
        parts.append((token_file.read(REPEATED_TOKENS, by="models.repeat"), options.repeated_share))
    if not parts:
        return Windows(_training_files(), options.seed)
    left = 1 - sum(share for _, share in parts)
    if abs(left) > 1e-6:  # tolerates rounding: 0.7, 0.2 and 0.1 leave nothing
        parts.append((_training_files(), left))
    windows = [(Windows(stream, options.seed), share) for stream, share in parts]
    return Mixture(windows, options.seed)


def _training_files() -> Tokens:
    return token_file.read(TRAIN_TOKENS, by="models.tokenizer")
