"""A response is a chat inside: what is wrong with it is told by the names that its client used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from draftloop.errors import InvalidInput

NAMES = (
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("tool_choice.function", "tool_choice"),
)
WITHIN_INPUT = "input"  # several items may have become one message: which one is not told


@contextlib.contextmanager
def own_names() -> Iterator[None]:
    """Raises what is raised within, by these names."""
    try:
        yield
    except InvalidInput as error:
        raise type(error).passed_on(_named(error.field), error.description) from None


def _named(field: str) -> str:
    for theirs, ours in NAMES:
        if field == theirs or field.startswith((f"{theirs}.", f"{theirs}[")):
            return ours if ours == WITHIN_INPUT else ours + field.removeprefix(theirs)
    return field
