"""Lark rules for texts without quotes that follow a JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.fields import CHOICES, MOST_HOPS, choices_of, referred
from orchestrator.gateway.tools.grammar import either, literal
from orchestrator.gateway.tools.notation import Mark

ANY = "/(?s:.*)/"


def text_rules(
    name: str, schema: dict[str, Any], end: str, mark: Mark, *, without: Sequence[str]
) -> tuple[str, list[str]]:
    """An expression for such a text followed by `end`, and the rules that the expression uses.

    `name` begins the rules' names, `end` may be a mark, and the text contains none of the marks
    `without`. Of what schemas say, only `format` is not enforced.
    """
    closing, choices, rules = mark(end), [], []
    spelled = closing == literal(end)
    for number, one in enumerate(_alternatives(schema, schema)):
        values = one["enum"] if "enum" in one else [one["const"]] if "const" in one else None
        if values is not None:
            texts = [str(value) for value in values if _has_none(str(value), without)]
            choices += [
                literal(text + end) if spelled else f"{literal(text)} {closing}" for text in texts
            ]
            continue
        part = f"{name}_text_{number}"
        terms = " & ".join([*_terms(one), _without(without)])
        ended = f"{part}[suffix={closing}]: {part.upper()}"
        rules += [
            ended if spelled else f"{part}: {part.upper()} {closing}",
            f"{part.upper()}: {terms}",
        ]
        choices.append(part)
    return either(choices), rules


def _alternatives(schema: Any, root: dict[str, Any], hops: int = 0) -> list[dict[str, Any]]:
    """The schema itself, or the schemas that it lets choose from."""
    if not isinstance(schema, dict) or hops > MOST_HOPS:
        return [{}]
    if isinstance(target := schema.get("$ref"), str):
        return _alternatives(referred(target, root), root, hops + 1)
    for key in CHOICES:
        several = choices_of(schema, key)
        if key == "allOf" and len(several) > 1:
            rule = "must have texts of one schema each, as this model writes calls"
            raise InvalidInput("tools", rule, key)
        if several:
            return [leaf for one in several for leaf in _alternatives(one, root, hops + 1)]
    return [schema]


def _has_none(value: str, marks: Sequence[str]) -> bool:
    if any(mark in value for mark in marks):
        rule = f"must have texts without {', '.join(marks)}, as this model writes calls"
        raise InvalidInput("tools", rule, value)
    return True


def _terms(schema: dict[str, Any]) -> list[str]:
    """Regular expressions that all have to match the text."""
    terms = []
    least, most = schema.get("minLength") or 0, schema.get("maxLength")
    if least or most is not None:
        most = "" if most is None else most
        terms.append(f"/(?s:.{{{least},{most}}})/")
    if isinstance(pattern := schema.get("pattern"), str):
        terms.append(_searched(pattern))
    return terms or [ANY]


def _searched(pattern: str) -> str:
    """A pattern for the whole text: JSON Schema's patterns may match anywhere in it."""
    before = "" if pattern.startswith("^") else "(?s:.*)"
    behind = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    inner = pattern.removeprefix("^")
    inner = inner if behind else inner.removesuffix("$")
    inner = re.sub(r"\\.|[/\n]", lambda found: _lark_letters(found[0]), inner, flags=re.S)
    return f"/{before}(?:{inner}){behind}/"


def _lark_letters(letters: str) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(letters, letters)


def _without(marks: Sequence[str]) -> str:
    escaped = "|".join(re.escape(mark).replace("/", "\\/") for mark in marks)
    return f"~/(?s:.*)({escaped})(?s:.*)/"
