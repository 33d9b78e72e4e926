"""A way to multiply a strip of outputs by some rows: what the kernel of `cpu_linear` asks of it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

WORD_BITS = 32  # of weights, as many of them as fit


class Block(NamedTuple):
    """A strip by some rows along a part of k, in values and addresses of the code being written.

    `row`, `rows`: the first of them among those that are packed, and how many; `room`: rows of the
    packed matrix. `weights`: the strip's of this part, in panels `panel` words apart. The sums
    [rows][strip] go on from `start`, whose rows are `pitch` floats apart: the bias, with a pitch of
    0, or what the part before left. `scales`: those of the strip's outputs, where weights are
    bytes. `following`: words to the weights that come next, 0 if that is not known.
    """

    row: Any
    rows: Any
    room: Any
    weights: Any
    panel: Any
    start: Any
    pitch: Any
    sums: Any
    scales: Any
    steps: Any
    following: Any


class Way(Protocol):
    """Writes its part into the kernel's module."""

    name: str

    @property
    def block(self) -> int:
        """Steps of k that are taken at a time."""

    @property
    def step_words(self) -> int:
        """Words of a row of activations that a step spans."""

    def scales(self, b: Any, strip: Any, step: Any, steps: Any) -> Any:
        """How many strips' scales lie before those of a strip at a step, of so many steps."""

    def begin(self, b: Any) -> Any:
        """What a thread does before a call; the answer is for `end`."""

    def end(self, b: Any, before: Any) -> None:
        """What a thread does after a call."""

    def room(self, b: Any, rows: Any) -> Any:
        """Rows of sums that so many rows take."""

    def height(self, b: Any, rows: Any) -> Any:
        """How many of so many rows are multiplied at a time."""

    def pack(self, b: Any, x: Any, packed: Any, rows: Any, pitch: Any, steps: Any) -> None:
        """Brings so many steps of rows that are `pitch` steps apart into the order it reads."""

    def multiply(self, b: Any, packed: Any, block: Block) -> None:
        """Advances the block's sums by its part of k."""
