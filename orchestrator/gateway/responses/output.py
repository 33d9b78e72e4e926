"""The items of a response's output, and the events that tell of their growth."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from orchestrator.gateway.output import IN_PROGRESS, Kinds, Object, OutputItem, TextBuffer
from orchestrator.gateway.parts import CallPart
from orchestrator.gateway.responses.custom_input import InputReader

Names = Mapping[str, Mapping[str, str]]
DONE_FIELDS = ("text", "logprobs")  # a part's fields in the event that its text is whole


class Item(OutputItem):
    """An item of the output, with an id of its own."""

    prefix: ClassVar[str]

    def __init__(self, index: int, **fields: Any) -> None:
        self._fields: Object = {"id": f"{self.prefix}_{uuid.uuid4().hex}", **fields}
        self._fields["status"] = IN_PROGRESS
        self._index = index
        self._text = TextBuffer()

    @property
    def value(self) -> Object:
        self._write_text(str(self._text))
        return self._fields

    @abstractmethod
    def _write_text(self, text: str) -> None:
        """Writes the text so far into its field."""

    def opening(self) -> Iterator[Object]:
        yield self._output_event("added")

    @abstractmethod
    def _done_events(self) -> Iterator[Object]:
        """Events that the item's text is whole."""

    def closing(self, status: str) -> Iterator[Object]:
        self._write_text(str(self._text))
        yield from self._done_events()
        self._fields["status"] = status
        yield self._output_event("done")

    def _output_event(self, what: str) -> Object:
        item = _snapshot(self.value)
        return {"type": f"response.output_item.{what}", "output_index": self._index, "item": item}

    def _event(self, what: str, fields: Object) -> Object:
        place = {"item_id": self._fields["id"], "output_index": self._index}
        return {"type": f"response.{what}", **place, **fields}


class TextItem(Item):
    """An item with one text."""

    text_type: ClassVar[str]
    part_fields: ClassVar[Object]

    def __init__(self, index: int, **fields: Any) -> None:
        super().__init__(index, content=[], **fields)
        self._part: Object = {"type": self.text_type, "text": "", **_snapshot(self.part_fields)}

    def opening(self) -> Iterator[Object]:
        yield from super().opening()
        yield self._content_event("content_part.added", {"part": _snapshot(self._part)})
        self._fields["content"].append(self._part)

    def add_text(self, text: str, logprobs: Sequence[Object]) -> Iterator[Object]:
        self._text.add(text)
        yield self._content_event(f"{self.text_type}.delta", {"delta": text})

    def _write_text(self, text: str) -> None:
        self._part["text"] = text

    def _done_events(self) -> Iterator[Object]:
        fields = {name: value for name, value in self._part.items() if name in DONE_FIELDS}
        yield self._content_event(f"{self.text_type}.done", _snapshot(fields))
        yield self._content_event("content_part.done", {"part": _snapshot(self._part)})

    def _content_event(self, what: str, fields: Object) -> Object:
        return self._event(what, {"content_index": 0, **fields})


class MessageItem(TextItem):
    """Text of the answer."""

    prefix, text_type = "msg", "output_text"
    part_fields: ClassVar[Object] = {"annotations": [], "logprobs": []}

    def __init__(self, index: int) -> None:
        super().__init__(index, type="message", role="assistant")

    def add_text(self, text: str, logprobs: Sequence[Object]) -> Iterator[Object]:
        self._part["logprobs"].extend(logprobs)
        for event in super().add_text(text, logprobs):
            yield {**event, "logprobs": [*logprobs]}


class ReasoningItem(TextItem):
    """Reasoning before the answer."""

    prefix, text_type = "rs", "reasoning_text"
    part_fields: ClassVar[Object] = {}

    def __init__(self, index: int) -> None:
        super().__init__(index, type="reasoning", summary=[])


class CallItem(Item):
    """A call of a function. `names`: name and namespace by full name, of functions in one."""

    prefix = "fc"

    def __init__(self, names: Names, index: int, part: CallPart) -> None:
        fields = {**names.get(part.name, {"name": part.name}), "arguments": ""}
        super().__init__(index, type="function_call", call_id=part.call_id, **fields)

    def add_text(self, text: str, logprobs: Sequence[Object]) -> Iterator[Object]:
        self._text.add(text)
        yield self._event("function_call_arguments.delta", {"delta": text})

    def _write_text(self, text: str) -> None:
        self._fields["arguments"] = text

    def _done_events(self) -> Iterator[Object]:
        fields = {name: self._fields[name] for name in ("name", "arguments")}
        yield self._event("function_call_arguments.done", fields)


class CustomCallItem(Item):
    """A call of a tool that takes text. `names`: as in `CallItem`."""

    prefix = "ctc"

    def __init__(self, names: Names, index: int, part: CallPart) -> None:
        fields = {**names.get(part.name, {"name": part.name}), "input": ""}
        super().__init__(index, type="custom_tool_call", call_id=part.call_id, **fields)
        self._reader = InputReader()

    def add_text(self, text: str, logprobs: Sequence[Object]) -> Iterator[Object]:
        yield from self._text_events(self._reader.feed(text))

    def _write_text(self, text: str) -> None:
        self._fields["input"] = text

    def _done_events(self) -> Iterator[Object]:
        yield from self._text_events(self._reader.rest())
        yield self._event("custom_tool_call_input.done", {"input": str(self._text)})

    def _text_events(self, text: str) -> Iterator[Object]:
        self._text.add(text)
        if text:
            yield self._event("custom_tool_call_input.delta", {"delta": text})


def _snapshot(fields: Object) -> Object:
    """A copy that does not grow with the item.

    It shares the log-probabilities of tokens, which never change; there may be thousands of them.
    """
    return {name: _copied(name, value) for name, value in fields.items()}


def _copied(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [*value] if name == "logprobs" else [_copied("", each) for each in value]
    return _snapshot(value) if isinstance(value, dict) else value


def kinds(names: Names, custom_tools: Collection[str] = ()) -> Kinds:
    """Makers of an answer's items. `custom_tools`: full names of the tools that take text.

    `names`: as in `CallItem`.
    """

    def make_call(index: int, part: CallPart) -> Item:
        if part.name in custom_tools:
            return CustomCallItem(names, index, part)
        return CallItem(names, index, part)

    return Kinds(ReasoningItem, MessageItem, make_call)
