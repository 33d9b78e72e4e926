"""Lark rules for texts without quotes that follow a JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.definitions import resolve_reference
from orchestrator.gateway.tools.fields import CHOICE_KEYS, choices_of, listed_values
from orchestrator.gateway.tools.grammar import either, literal
from orchestrator.gateway.tools.notation import Mark

ANY = "/(?s:.*)/"


def text_rules(
    name: str, schema: dict[str, Any], end: str, mark: Mark, *, forbidden: Sequence[str]
) -> tuple[str, list[str]]:
    """An expression for such a text followed by `end`, and the rules that the expression uses.

    `name` begins the rules' names, `end` may be a mark, and the text contains none of the marks
    `forbidden`. Of what schemas say, only `format` is not enforced.
    """
    closing, choices, rules = mark(end), [], []
    is_literal = closing == literal(end)
    for index, alternative in enumerate(_alternatives(schema)):
        values = listed_values(alternative)
        if values is not None:
            texts = [str(value) for value in values if _require_without(str(value), forbidden)]
            choices += [
                literal(text + end) if is_literal else f"{literal(text)} {closing}"
                for text in texts
            ]
            continue
        part = f"{name}_text_{index}"
        terms = " & ".join([*_terms(alternative), _excluding(forbidden)])
        ended = f"{part}[suffix={closing}]: {part.upper()}"
        rules += [
            ended if is_literal else f"{part}: {part.upper()} {closing}",
            f"{part.upper()}: {terms}",
        ]
        choices.append(part)
    return either(choices), rules


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schema itself, or the schemas that it lets choose from."""
    found: list[dict[str, Any]] = []
    followed: set[str] = set()  # references; a schema may contain itself
    unread: list[Any] = [schema]
    while unread:
        part = unread.pop()
        if not isinstance(part, dict):
            found.append({})
        elif isinstance(target := part.get("$ref"), str):
            if target not in followed:
                followed.add(target)
                unread.append(resolve_reference(target, schema))
        elif choices := _choices(part):
            unread += reversed(choices)
        else:
            found.append(part)
    return found or [{}]


def _choices(schema: dict[str, Any]) -> list[Any]:
    """The schemas that a schema lets choose from; none if it states its own rules."""
    for key in CHOICE_KEYS:
        schemas = choices_of(schema, key)
        if key == "allOf" and len(schemas) > 1:
            rule = "must have texts of one schema each, as this model writes calls"
            raise InvalidInput("tools", rule, key)
        if schemas:
            return schemas
    return []


def _require_without(value: str, marks: Sequence[str]) -> bool:
    if any(mark in value for mark in marks):
        rule = f"must have texts without {', '.join(marks)}, as this model writes calls"
        raise InvalidInput("tools", rule, value)
    return True


def _terms(schema: dict[str, Any]) -> list[str]:
    """Regular expressions that all have to match the text."""
    terms = []
    min_length, max_length = schema.get("minLength") or 0, schema.get("maxLength")
    if min_length or max_length is not None:
        max_length = "" if max_length is None else max_length
        terms.append(f"/(?s:.{{{min_length},{max_length}}})/")
    if isinstance(pattern := schema.get("pattern"), str):
        terms.append(_anchored_pattern(pattern))
    return terms or [ANY]


def _anchored_pattern(pattern: str) -> str:
    """A pattern for the whole text: JSON Schema's patterns may match anywhere in it."""
    prefix = "" if pattern.startswith("^") else "(?s:.*)"
    suffix = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    inner = pattern.removeprefix("^")
    inner = inner if suffix else inner.removesuffix("$")
    inner = re.sub(r"\\.|[/\n]", lambda found: _escape_for_lark(found[0]), inner, flags=re.S)
    return f"/{prefix}(?:{inner}){suffix}/"


def _escape_for_lark(letters: str) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(letters, letters)


def _excluding(marks: Sequence[str]) -> str:
    escaped = "|".join(re.escape(mark).replace("/", "\\/") for mark in marks)
    return f"~/(?s:.*)({escaped})(?s:.*)/"
