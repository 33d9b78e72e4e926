"""Calls of one function in the notations that write arguments between tags."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.gateway.tools.glm45 import GLM45
from orchestrator.gateway.tools.minimax_m2 import MINIMAX_M2
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import read_calls

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "integer"},
        "share": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"$ref": "#/$defs/more"},
        "kind": {"enum": ["a", "b c", ""]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {"more": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
WRITE = Function(name="write", parameters=PARAMETERS)
KNOWN = {"write": WRITE}


class Style(NamedTuple):
    """`call` writes one call with these arguments, `answer` all; `end` follows every value."""

    notation: Notation
    call: Callable[[dict[str, str]], str]
    answer: Callable[[list[str]], str]
    end: str

    def written(self, **arguments: str) -> str:
        """An answer with a single call."""
        return self.answer([self.call(arguments)])

    def arguments_of(self, answer: str) -> Any:
        """Arguments of an answer's only call, read whole and letter by letter."""
        content, ((name, arguments),) = read_calls(self.notation, [answer], KNOWN)
        assert (content, name) == ("", "write")
        assert read_calls(self.notation, list(answer), KNOWN) == (content, [(name, arguments)])
        return json.loads(arguments)


def _qwen(arguments: dict[str, str]) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in arguments.items()
    )
    return f"<tool_call>\n<function=write>\n{parameters}</function>\n</tool_call>"


def _glm(line: str) -> Callable[[dict[str, str]], str]:
    """Calls of 4.5 and 4.6 with line breaks, or of later versions without."""

    def call(arguments: dict[str, str]) -> str:
        parameters = "".join(
            f"<arg_key>{key}</arg_key>{line}<arg_value>{text}</arg_value>{line}"
            for key, text in arguments.items()
        )
        return f"<tool_call>write{line}{parameters}</tool_call>"

    return call


def _minimax(arguments: dict[str, str]) -> str:
    parameters = "".join(
        f'<parameter name="{key}">{text}</parameter>\n' for key, text in arguments.items()
    )
    return f'<invoke name="write">\n{parameters}</invoke>\n'


def _in_a_section(calls: list[str]) -> str:
    return f"<minimax:tool_call>\n{''.join(calls)}</minimax:tool_call>"


QWEN = Style(QWEN3_CODER, _qwen, "\n".join, "</parameter>")
GLM_4_5 = Style(GLM45, _glm("\n"), "\n".join, "</arg_value>")
GLM_4_7 = Style(GLM45, _glm(""), "".join, "</arg_value>")
MINIMAX = Style(MINIMAX_M2, _minimax, _in_a_section, "</parameter>")
STYLES = {"qwen": QWEN, "glm 4.5": GLM_4_5, "glm 4.7": GLM_4_7, "minimax": MINIMAX}
