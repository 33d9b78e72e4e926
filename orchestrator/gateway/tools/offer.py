"""The tools that a chat offers to its model, and which calls it requires."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from draftloop.errors import InvalidInput
from draftloop.grammar import MAX_LETTERS, Grammar
from draftloop.grammars.text import with_parts
from orchestrator.gateway.form_field import with_form_field
from orchestrator.gateway.tools.grammar import calls_grammar
from orchestrator.gateway.tools.notation import Functions, Notation
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import (
    NO_PARAMETERS,
    AllowedTools,
    ChosenTool,
    PlainChoice,
    Tool,
    ToolChoice,
)
from orchestrator.tokenizer import Tokenizer

SHOWN_FIELDS = {"type", "function"}
# Maximum length of all parameters' schemas, which are read before the grammar's length is known;
# descriptions, which no grammar contains, take up part of it.
MAX_SCHEMA_LETTERS = 4 * MAX_LETTERS


@dataclass(frozen=True, slots=True)
class Offer:
    """The calls that an answer may have.

    `grammar`: the answer's, if a call is `required` or an answer without calls must have some form.
    `schemas`: the arguments' grammars in it, one for each function. `parallel`: there may be
    several calls. `named_tokens`: the special tokens that mark calls.
    """

    notation: Notation
    functions: Functions
    grammar: Grammar | None
    named_tokens: frozenset[int]
    schemas: tuple[Grammar, ...] = ()
    parallel: bool = True
    required: bool = False

    def reader(self) -> CallReader:
        """A new reader; every answer needs its own."""
        return CallReader(
            self.notation, self.functions, required=self.required,
            max_calls=None if self.parallel else 1,
        )  # fmt: skip


def shown_tools(
    tools: Sequence[Tool] | None, choice: PlainChoice | None
) -> list[dict[str, Any]] | None:
    """The tools as chat templates take them; None if there are none, or none may be called."""
    if not tools or choice == "none":
        return None
    plain = [tool.model_dump(include=SHOWN_FIELDS, exclude_none=True) for tool in tools]
    for tool in plain:
        tool["function"].setdefault("parameters", NO_PARAMETERS)
    return plain


def make_offer(
    notation: Notation,
    tools: Sequence[Tool],
    choice: PlainChoice,
    tokenizer: Tokenizer,
    *,
    parallel: bool,
    form: Grammar | None = None,
) -> Offer:
    """The offer of these tools. `form`: the grammar of an answer without calls, if it has one.

    Raises InvalidInput if the notation cannot express the tools' schemas.
    """
    marks = (tokenizer.added_token(mark) for mark in notation.marks)
    tokens = (token for token in marks if token is not None)
    named = frozenset(token for token in tokens if tokenizer.is_special(token))
    functions = [tool.function for tool in tools]
    offered = {function.name: function for function in functions}
    if choice == "auto" and form is None:
        return Offer(notation, offered, None, named, parallel=parallel)
    if isinstance(choice, ChosenTool):
        functions = [one for one in functions if one.name == choice.function.name]
    several = parallel and not isinstance(choice, ChosenTool)
    schemas = tuple(
        Grammar("json_schema", json.dumps(chosen.schema_of_arguments)) for chosen in functions
    )
    if (letters := sum(len(schema.text) for schema in schemas)) > MAX_SCHEMA_LETTERS:
        rule = f"must have parameters of at most {MAX_SCHEMA_LETTERS} characters in all"
        raise InvalidInput("tools", rule, f"{letters} characters")
    try:
        grammar = calls_grammar(notation, functions, tokenizer, several=several)
    except InvalidInput as error:
        raise with_form_field(error, "tools") from None
    if choice == "auto" and form is not None:
        grammar = with_parts("start: @calls | @content\n", {"calls": grammar, "content": form})
    return Offer(notation, offered, grammar, named, schemas, several, required=choice != "auto")


def require_tools(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> None:
    """Raises InvalidInput if tools share a name, or the choice does not fit the tools."""
    names = [tool.function.name for tool in tools or ()]
    counted = Counter(names)
    if duplicate := next((name for name in counted if counted[name] > 1), None):
        raise InvalidInput("tools", "must have names of their own", f"{duplicate} twice")
    if not names and choice not in (None, "none", "auto"):
        asked = next((name for _, name in _chosen_functions(choice)), choice)
        raise InvalidInput("tool_choice", "must only ask for a call where there are tools", asked)
    for field, name in _chosen_functions(choice):
        if name not in names:
            raise InvalidInput(field, f"must be one of {', '.join(names)}", name)


def _chosen_functions(choice: ToolChoice | None) -> Iterator[tuple[str, str]]:
    """The functions that the choice names, each with its field."""
    match choice:
        case ChosenTool(function=function):
            yield "tool_choice.function.name", function.name
        case AllowedTools(allowed_tools=allowed):
            for index, tool in enumerate(allowed.tools):
                yield f"tool_choice.allowed_tools.tools[{index}]", tool.function.name
