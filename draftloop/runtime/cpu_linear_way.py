"""The interface of a way to multiply a strip of outputs by some rows, for `cpu_linear`'s kernel."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

WORD_BITS = 32  # a word holds as many weights as fit


class Block(NamedTuple):
    """A strip by some rows along a part of k; fields are values and addresses in generated code.

    `row`, `rows`: first packed row, and number of rows; `room`: rows of the packed matrix.
    `weights`: the strip's weights of this part, in panels `panel` words apart. The sums
    [rows][strip] continue from `start`, whose rows are `pitch` floats apart: the bias, with a pitch
    of 0, or the previous part's sums. `scales`: of the strip's outputs, for weights in bytes.
    `following`: distance in words to the weights that are read next, 0 if unknown.
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
    """Emits its part of the kernel."""

    name: str

    @property
    def block(self) -> int:
        """Steps of k that are processed at a time."""

    @property
    def step_words(self) -> int:
        """Words of a row of activations per step."""

    def scales(self, b: Any, strip: Any, step: Any, steps: Any) -> Any:
        """Index, in units of a strip's scales, of those of a strip at a step, of `steps` in all."""

    def begin(self, b: Any) -> Any:
        """Emits what a thread does before a call; the result is passed to `end`."""

    def end(self, b: Any, before: Any) -> None:
        """Emits what a thread does after a call."""

    def room(self, b: Any, rows: Any) -> Any:
        """Rows of sums needed for this many rows."""

    def height(self, b: Any, rows: Any) -> Any:
        """How many of these rows are multiplied at a time."""

    def pack(self, b: Any, x: Any, packed: Any, rows: Any, pitch: Any, steps: Any) -> None:
        """Packs `steps` steps of rows, which are `pitch` steps apart, in the order it reads."""

    def multiply(self, b: Any, packed: Any, block: Block) -> None:
        """Adds the block's part of k to its sums."""
