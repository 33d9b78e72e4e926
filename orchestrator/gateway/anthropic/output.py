"""The blocks of a message's content, and the events that tell of their growth."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic_core import from_json

from orchestrator.gateway.output import Kinds, Object, OutputItem, TextBuffer
from orchestrator.gateway.parts import CallPart


class Block(OutputItem):
    """A block of content; events refer to it by its index."""

    delta_type: ClassVar[str]
    delta_field: ClassVar[str]

    def __init__(self, index: int, **fields: Any) -> None:
        self._fields: Object = fields
        self._index = index
        self._text = TextBuffer()

    @property
    def value(self) -> Object:
        return {**self._fields, **self._text_fields()}

    @abstractmethod
    def _text_fields(self) -> Object:
        """The fields that the text so far gives."""

    def opening(self) -> Iterator[Object]:
        yield self._event("start", {"content_block": copy.deepcopy(self.value)})

    def add_text(self, text: str, logprobs: Sequence[Object]) -> Iterator[Object]:
        self._text.add(text)
        yield self._event("delta", {"delta": {"type": self.delta_type, self.delta_field: text}})

    def closing(self, status: str) -> Iterator[Object]:
        yield self._event("stop", {})

    def _event(self, what: str, fields: Object) -> Object:
        return {"type": f"content_block_{what}", "index": self._index, **fields}


class TextBlock(Block):
    """Text of the answer."""

    delta_type, delta_field = "text_delta", "text"

    def __init__(self, index: int) -> None:
        super().__init__(index, type="text")

    def _text_fields(self) -> Object:
        return {"text": str(self._text)}


class ThinkingBlock(Block):
    """Reasoning before the answer. The signature is empty: clients send the text itself back."""

    delta_type, delta_field = "thinking_delta", "thinking"

    def __init__(self, index: int) -> None:
        super().__init__(index, type="thinking", signature="")

    def _text_fields(self) -> Object:
        return {"thinking": str(self._text)}


class ToolUseBlock(Block):
    """A call of a tool. Its input is an object, but is streamed as the object's JSON text."""

    delta_type, delta_field = "input_json_delta", "partial_json"

    def __init__(self, index: int, part: CallPart) -> None:
        super().__init__(index, type="tool_use", id=part.call_id, name=part.name)

    def _text_fields(self) -> Object:
        return {"input": _object(str(self._text))}


def _object(text: str) -> Object:
    """The object in a text that a limit may have cut off; empty if it is not an object.

    One with NaN or 1e999 in it counts as none, since the whole answer would not be JSON.
    """
    try:
        value = from_json(text, allow_partial=True)
        json.dumps(value, allow_nan=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


KINDS = Kinds(ThinkingBlock, TextBlock, ToolUseBlock)
