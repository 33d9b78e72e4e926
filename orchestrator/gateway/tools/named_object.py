"""A call's name and, behind it, the object that is its arguments."""

from __future__ import annotations

from orchestrator.gateway.tools.braces import Braces
from orchestrator.gateway.tools.notation import CallBody


class NamedObject(CallBody):
    """What bodies of this kind share once the name has been read, or found to be none."""

    def __init__(self) -> None:
        super().__init__()
        self._braces = Braces()
        self._new = ""

    def new_arguments(self) -> str:
        new, self._new = self._new, ""
        return new

    def _read_object(self, text: str) -> str:
        """Up to its end; what stands behind comes back."""
        end = self._braces.end_in(text)
        self.ended = end is not None
        self._new += text[:end]
        return "" if end is None else text[end:]

    def _is_none(self) -> str:
        """It was no call: what has been read is text, and comes back."""
        rest, self.raw, self.ended = self.raw, "", True
        return rest
