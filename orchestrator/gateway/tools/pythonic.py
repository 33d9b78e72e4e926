"""Calls in Python's syntax, as Llama 3.2 and 4, Gemma 3 and others write them."""

from __future__ import annotations

from collections.abc import Sequence

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.fields import Field, fields_of, types_of
from orchestrator.gateway.tools.grammar import either, json_value, literal
from orchestrator.gateway.tools.notation import Functions, Mark, Notation
from orchestrator.gateway.tools.python_call import WORD, PythonCall
from orchestrator.gateway.tools.schemas import Function

# Python's names of values that JSON writes differently. In lists and objects JSON's are read, too.
WRITTEN = {
    frozenset({"boolean"}): '("True" | "False")',
    frozenset({"null"}): '"None"',
}


class Pythonic(Notation):
    """`[name(key=value, …), …]` as the whole answer; values are literals."""

    name = "pythonic"
    begin = "<|python_start|>"  # Llama 4's
    end = "<|python_end|>"
    between = ("[", ",", "]")
    opens_answer = True

    def opens_call(self, text: str, after: str) -> bool | None:
        """A call begins only in a list: outside of one, it is usually an example."""
        return after in ("[", ",") and WORD.match(text) is not None

    def body(self, functions: Functions | None, text: str) -> PythonCall:
        """Only a known function's name makes a call, since nothing marks calls."""
        return PythonCall(functions)

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Arguments come in the schema's order. Raises InvalidInput for what Python cannot hold."""
        rules = [rule for n, function in enumerate(functions) for rule in _call(n, function)]
        calls = either([f"call_{number}" for number in range(len(functions))])
        start = f'"[" call{" (COMMA call)*" if several else ""} "]"'
        comma = 'COMMA: ", "'
        return "\n".join([f"start: {start}", f"call: {calls}", comma, *rules, ""])


def _call(number: int, function: Function) -> list[str]:
    """Rules of one call: for each argument, what may follow with and without one before it.

    `first_…`: no argument is written yet. `later_…`: at least one is, so a comma comes first.
    """
    fields = fields_of(function)
    for name in (function.name, *(field.name for field in fields)):
        if not WORD.fullmatch(name):
            rule = "must have names of letters, digits, _, - and ., as this model writes calls"
            raise InvalidInput("tools", rule, name)
    rules = [f'call_{number}: {literal(function.name + "(")} first_{number}_0 ")"']
    for place, field in enumerate(fields):
        value, later = f"value_{number}_{place}", f"later_{number}_{place + 1}"
        first, more = f"{value} {later}", f"COMMA {value} {later}"
        if not field.required:
            first += f" | first_{number}_{place + 1}"
            more += f" | {later}"
        rules += [
            f"first_{number}_{place}: {first}",
            f"later_{number}_{place}: {more}",
            f"{value}: {literal(field.name + '=')} {_value(field)}",
        ]
    return [*rules, *(f'{place}_{number}_{len(fields)}: ""' for place in ("first", "later"))]


def _value(field: Field) -> str:
    return WRITTEN.get(types_of(field.schema)) or json_value(field.schema)


PYTHONIC = Pythonic()
