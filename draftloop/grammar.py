"""Grammars: the form that an output as a whole must have."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from draftloop.errors import InvalidInput

# A JSON Schema; a regular expression; a JSON list of texts; Lark's or llama.cpp's (GBNF) notation.
Format = Literal["json_schema", "regex", "choice", "grammar"]
FORMATS: tuple[Format, ...] = get_args(Format)
MAX_LETTERS = 65_536
ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output as a whole must be a text of the grammar, after which it ends."""

    format: Format
    text: str

    @property
    def field(self) -> str:
        """Name of the field that holds it in a request."""
        return f"grammar.{self.format}"

    def validate(self) -> None:
        """Raises InvalidInput if the text is too long, or malformed as far as its format tells.

        Whether it can be followed is decided by `draftloop.grammars`.
        """
        if self.format not in FORMATS:
            raise InvalidInput("grammar", f"must be one of {', '.join(FORMATS)}", self.format)
        if not 0 < len(self.text) <= MAX_LETTERS:
            rule = f"must have from 1 to {MAX_LETTERS} characters"
            raise InvalidInput(self.field, rule, f"{len(self.text)} characters")
        if self.format in ("json_schema", "choice"):
            self._require_json()
        if self.format == "regex" and (len(self.text) - len(self.text.rstrip("\\"))) % 2:
            raise InvalidInput(self.field, "must not end in a single backslash", self.text)

    def require_stop_token(self, stop_token_ids: Collection[int]) -> None:
        """Raises InvalidInput if the model has no token with which to end the output."""
        if not stop_token_ids:
            rule = "needs a model with a token that ends a text"
            raise InvalidInput("grammar", rule, self.field)

    def _require_json(self) -> None:
        try:
            read = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(self.field, f"must be JSON ({error})", self.text) from None
        if self.format == "json_schema" and read is not True and not isinstance(read, dict):
            raise InvalidInput(self.field, "must be a JSON object, or true", self.text)
        texts = isinstance(read, list) and read and all(isinstance(one, str) for one in read)
        if self.format == "choice" and not texts:
            raise InvalidInput(self.field, "must be a JSON list of texts", self.text)
