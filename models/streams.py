"""The tokens that a run trains on: the training files, and the shares of what was made of them."""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from models.layout import REPEATED_TOKENS, REVISED_TOKENS, TRAIN_TOKENS
from models.packing import mixed
from models.sample import sampled_stream


def add_share_options(parser: argparse.ArgumentParser) -> None:
    """Options that say what the text is mixed from."""
    for made, by in (("sampled", "sample"), ("revised", "revise"), ("repeated", "repeat")):
        parser.add_argument(
            f"--{made}-share", type=float, default=0.0, help=f"0 to 1, of text by models.{by}"
        )


def training_stream(options: argparse.Namespace) -> npt.NDArray[np.int16]:
    """The text that the options ask for, as long as what was made suffices for.

    Raises FileNotFoundError where something asked for was not made yet.
    """
    parts = []
    if options.sampled_share:
        parts.append((sampled_stream(), options.sampled_share))
    if options.revised_share:
        parts.append((np.load(REVISED_TOKENS), options.revised_share))
    if options.repeated_share:
        parts.append((np.load(REPEATED_TOKENS), options.repeated_share))
    stream: npt.NDArray[np.int16] = np.load(TRAIN_TOKENS)
    return mixed(stream, parts, options.seed) if parts else stream
