"""The first forwards of a model that nobody may have run before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from draftloop.errors import StartupFailure

# What code says that was handed a model or arguments it was not written for.
SURPRISES = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, ImportError)

LONGEST = 300  # letters of another library's message
ADVICE = "serve a model with plain or sliding-window attention such as Llama, Qwen2 or Mistral"


class NotOurAttention(NotImplementedError):
    """A model keeps its attention to itself."""


@contextmanager
def trial(kind: str) -> Iterator[None]:
    """Makes a StartupFailure, which names the `kind` of model, of whatever goes wrong within."""
    try:
        yield
    except NotOurAttention as error:
        raise unlike(kind) from error
    except SURPRISES as error:
        raise StartupFailure(f"model: {kind} cannot be run here: {said_by(error)}") from error


def said_by(error: BaseException) -> str:
    """What an error of another library says, in one line that is not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def unlike(name: str) -> StartupFailure:
    """The refusal of a model, or of a kind of models, of this name."""
    return StartupFailure(
        f"model: {name} does not leave its attention to transformers' attention interface, through "
        f"which drafts are verified; serve a model that does, such as Llama, Qwen2 or Mistral"
    )
