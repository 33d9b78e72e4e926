"""How models write calls: each family in its own notation, which its chat template shows it."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

NotationName = Literal["hermes", "llama3_json", "mistral"]


class Notation(NamedTuple):
    """JSON objects of a name and arguments, between marks.

    `begin` stands before calls and `end` behind each, where they are not empty. `between` are marks
    without meaning around the objects. `opens_answer`: calls are the whole answer, and `begin`
    may be left out. `lark`: an answer that only calls, in llguidance's notation, where `call` is
    an object; `lark_single` one with a single call. `id_letters`: of the id of a call.
    """

    name: NotationName
    begin: str
    end: str
    between: tuple[str, ...]
    arguments: str
    opens_answer: bool
    lark: str
    lark_single: str
    id_letters: int = 24
    id_prefix: str = "call_"


HERMES = Notation(  # of Hermes, Qwen 2.5 and 3, and many others
    name="hermes",
    begin="<tool_call>",
    end="</tool_call>",
    between=(),
    arguments="arguments",
    opens_answer=False,
    lark='marked ("\\n" marked)*\nmarked: {begin} "\\n" call "\\n" {end}',
    lark_single='{begin} "\\n" call "\\n" {end}',
)
LLAMA3_JSON = Notation(
    name="llama3_json",
    begin="<|python_tag|>",
    end="",
    between=(";",),
    arguments="parameters",
    opens_answer=True,
    lark='call ("; " call)*',
    lark_single="call",
)
MISTRAL = Notation(
    name="mistral",
    begin="[TOOL_CALLS]",
    end="",
    between=("[", ",", "]"),
    arguments="arguments",
    opens_answer=False,
    lark='{begin} " "? "[" call (", " call)* "]"',
    lark_single='{begin} " "? "[" call "]"',
    id_letters=9,  # their templates refuse any other number
    id_prefix="",
)
NOTATIONS = {one.name: one for one in (HERMES, LLAMA3_JSON, MISTRAL)}

# Other notations between the same marks, which are not read here.
OTHERS = re.compile(r"<function=|<arg_key>|\[ARGS\]")
LLAMA = re.compile(r'<\|python_tag\|>|"name": function name, "parameters"')


def detected(template: str) -> Notation | None:
    """The one that a chat template shows; None where it shows none that is known."""
    if OTHERS.search(template):
        return None
    if HERMES.begin in template:
        return HERMES
    if MISTRAL.begin in template:
        return MISTRAL
    return LLAMA3_JSON if LLAMA.search(template) else None
