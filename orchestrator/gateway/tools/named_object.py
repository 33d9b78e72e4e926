"""Base of calls that are a name followed by the object of its arguments."""

from __future__ import annotations

from orchestrator.gateway.tools.braces import Braces
from orchestrator.gateway.tools.notation import CallBody


class NamedObject(CallBody):
    """What such calls share once their name has been read, or found not to be one."""

    def __init__(self) -> None:
        super().__init__()
        self._braces = Braces()
        self._new = ""

    def new_arguments(self) -> str:
        new, self._new = self._new, ""
        return new

    def _read_object(self, text: str) -> str:
        """Reads the object up to its end; returns what follows it."""
        end = self._braces.end_in(text)
        self.ended = end is not None
        self._new += text[:end]
        return "" if end is None else text[end:]

    def _end_as_no_call(self) -> str:
        """Ends a call that turned out to be none; returns what has been read of it."""
        rest, self.raw, self.ended = self.raw, "", True
        return rest
