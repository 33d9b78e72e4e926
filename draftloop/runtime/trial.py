"""Guards the first forwards of a model of a kind that may never have been run here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from draftloop.errors import StartupFailure

# Errors of code that gets a model or arguments it was not written for.
UNEXPECTED_ERRORS = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, ImportError)

MAX_MESSAGE_LETTERS = 300  # characters of another library's message
ADVICE = "serve a model with plain or sliding-window attention such as Llama, Qwen2 or Mistral"


class UnsupportedAttention(NotImplementedError):
    """The model does not use transformers' attention interface in a way that we can replace."""


@contextmanager
def trial(kind: str) -> Iterator[None]:
    """Turns errors inside it into a StartupFailure that names the `kind` of model."""
    try:
        yield
    except UnsupportedAttention as error:
        raise unsupported_model(kind) from error
    except UNEXPECTED_ERRORS as error:
        raise StartupFailure(f"model: {kind} cannot be run here: {error_text(error)}") from error


def error_text(error: BaseException) -> str:
    """The message of another library's error, as one line of limited length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_MESSAGE_LETTERS else f"{text[:MAX_MESSAGE_LETTERS]} …"


def unsupported_model(name: str) -> StartupFailure:
    """The error that refuses a model, or a kind of models, of this name."""
    return StartupFailure(
        f"model: {name} does not leave its attention to transformers' attention interface, through "
        f"which drafts are verified; serve a model that does, such as Llama, Qwen2 or Mistral"
    )
