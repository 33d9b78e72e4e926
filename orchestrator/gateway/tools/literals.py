"""Values that models write without an object around them: JSON or Python literals."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

UTF_16 = "utf-16-le"
NAMES: dict[str, Any] = {"true": True, "false": False, "null": None}  # JSON's, within Python's


def value_of(text: str) -> Any:
    """The value of a JSON or Python literal, as JSON has values. Raises ValueError for others."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():  # about escapes that Python does not know
            warnings.simplefilter("ignore")
            return _literal_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError("no literal") from error


def as_json(value: Any) -> str:
    """The value as JSON. Raises ValueError for what JSON does not have, such as infinity."""
    return in_whole_characters(json.dumps(value, ensure_ascii=False, allow_nan=False))


def in_whole_characters(text: str) -> str:
    """The text with the halves of a character joined that models escape one by one.

    Python's literals leave them apart, unlike JSON. A half without the other becomes U+FFFD: UTF-8,
    in which answers are written, has no halves.
    """
    return text.encode(UTF_16, "surrogatepass").decode(UTF_16, "replace")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _literal_value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | str() | int() | float() | None):
            return node.value
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd() as sign,
            operand=ast.Constant(value=int() | float() as number),
        ) if not isinstance(number, bool):
            return -number if isinstance(sign, ast.USub) else number
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            return [_literal_value(entry) for entry in entries]
        case ast.Dict(keys=keys, values=values):
            return {
                _key(key): _literal_value(entry) for key, entry in zip(keys, values, strict=True)
            }
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
    raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("no key of an object")
