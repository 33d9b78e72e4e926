"""Reading a session's stream: one message at a time, within the idle timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from draftloop.errors import (
    SHOWN_VALUE_LENGTH,
    InvalidInput,
    Mismatch,
    SessionLost,
    shortened,
)
from draftloop.model_info import ModelInfo
from draftloop.rpc.convert import sampling_from_pb
from draftloop.rpc.decoding import readable
from protos import drafter_pb2, verifier_pb2

Message = TypeVar("Message")


async def next_message(messages: AsyncIterator[Message], idle_timeout_s: float) -> Message | None:
    """The next message; None after the client's last one.

    Raises SessionLost if none arrives within the idle timeout, so that its memory is freed, and
    InvalidInput for bytes that are not a message.
    """
    try:
        async with asyncio.timeout(idle_timeout_s):
            return readable(await anext(messages, None))
    except TimeoutError:
        raise SessionLost(f"no message came for {idle_timeout_s:g} s") from None


def require_open(kind: str | None) -> None:
    """Raises InvalidInput unless the first message opens the session."""
    if kind != "open":
        raise InvalidInput("kind", "must be open in the first message of a stream", kind)


def opening_fields(
    opened: drafter_pb2.OpenDrafterSession | verifier_pb2.OpenVerifierSession,
) -> dict[str, Any]:
    """Fields that the openings of both services share, as in `runtime.sessions.Opening`."""
    return {
        "session_id": opened.session_id,
        "token_ids": tuple(opened.token_ids),
        "prompt_length": opened.prompt_length,
        "sampling": sampling_from_pb(opened.sampling),
        "stop_token_ids": frozenset(opened.stop_token_ids),
        "prefix_group": opened.prefix_group if opened.HasField("prefix_group") else None,
        "prefix_read_only": opened.prefix_read_only,
    }


def require_vocabulary(given: str, own: str) -> None:
    """Raises Mismatch unless the client tokenized with the model's vocabulary."""
    if given != own:
        shown = shortened(repr(given), SHOWN_VALUE_LENGTH)
        raise Mismatch(
            f"vocabulary_fingerprint: must be {own}, the model's; got {shown}; "
            f"drafter, verifier and orchestrator need the same tokenizer"
        )


def require_model(opened: verifier_pb2.OpenVerifierSession, own: ModelInfo) -> None:
    """Raises Mismatch if the request began on another model, or on this one in another format.

    A fingerprint or an element type that is not given is not compared.
    """
    compared = [name for name in ("model_fingerprint", "dtype") if getattr(opened, name)]
    compared += ["quantization"] if opened.dtype else []
    for name in compared:
        given, served = getattr(opened, name), getattr(own, name)
        if given != served:
            shown = shortened(repr(given), SHOWN_VALUE_LENGTH)
            raise Mismatch(
                f"{name}: must be {served or 'empty'}, the served model's; got {shown}; "
                f"a text goes on with the model that it began on"
            )
