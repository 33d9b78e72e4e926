"""Converts grammars to llguidance's notation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, grammar_from

from draftloop.errors import InvalidInput, shortened
from draftloop.grammar import Grammar
from draftloop.grammars.keywords import map_subschemas
from draftloop.grammars.objects import close_objects

# As in llama.cpp: where JSON allows any white space, small models write it endlessly. A schema may
# override this (`x-guidance`).
JSON_DEFAULTS: Any = {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})?"}
OF_PARTS = '{"grammars":'  # llguidance's own notation
# Formats that llguidance knows.
STRING_FORMATS = {
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
}  # fmt: skip
SHOWN_REASON = 300  # letters


def grammar_text(grammar: Grammar) -> str:
    """The grammar in llguidance's notation. Raises InvalidInput if it cannot be read."""
    try:
        if grammar.format == "json_schema":
            schema = enforced_schema(json.loads(grammar.text))
            text = "{}" if schema is True else json.dumps(schema)
            return LLMatcher.grammar_from_json_schema(text, defaults=JSON_DEFAULTS)
        if grammar.format == "choice":
            # As a single terminal: parser rules would be limited to about two thousand.
            texts = " | ".join(json.dumps(text) for text in json.loads(grammar.text))
            return grammar_from("lark", f"start: CHOICE\nCHOICE: {texts}")
        if grammar.format == "grammar" and grammar.text.startswith(OF_PARTS):
            return grammar.text
        return grammar_from(grammar.format, grammar.text)
    except ValueError as error:
        raise refusal(grammar, str(error)) from None
    except RecursionError:
        raise refusal(grammar, "nested too deep") from None


def enforced_schema(schema: Any) -> Any:
    """A JSON Schema as it is enforced. Raises RecursionError if it is nested too deeply."""
    return close_objects(without_annotations(schema))


def without_annotations(schema: Any) -> Any:
    """The same JSON Schema without unknown formats, which by the standard constrain nothing.

    Raises RecursionError if it is nested too deeply.
    """
    if isinstance(schema, list):
        return [without_annotations(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    constraints = {
        name: part for name, part in schema.items() if not _is_unknown_format(name, part)
    }
    return map_subschemas(constraints, without_annotations)


def _is_unknown_format(keyword: str, value: Any) -> bool:
    return keyword == "format" and isinstance(value, str) and value not in STRING_FORMATS


def with_parts(lark: str, parts: Mapping[str, Grammar]) -> Grammar:
    """A grammar in Lark's notation that refers to other grammars as `@name`.

    Raises InvalidInput if one of them cannot be read.
    """
    grammars = [{"lark_grammar": lark}]
    for name, part in parts.items():
        text = grammar_text(part)
        if text.startswith(OF_PARTS):
            inner, *further = json.loads(text)["grammars"]
        else:
            inner, further = {"lark_grammar": text}, []
        grammars += [{**inner, "name": name}, *further]
    return Grammar("grammar", json.dumps({"grammars": grammars}))


def refusal(grammar: Grammar, message: str) -> InvalidInput:
    """An error with llguidance's reason: the first line of its message and later `error:` lines."""
    first, *more = message.strip().splitlines() or ["unknown"]
    causes = [line for line in more if line.startswith("error:")]
    reason = shortened(" ".join([first, *causes]), SHOWN_REASON)  # it quotes the grammar
    rule = f"must be a grammar that can be followed ({reason})"
    return InvalidInput(grammar.field, rule, grammar.text)
