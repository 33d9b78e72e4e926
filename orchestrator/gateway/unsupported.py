"""What OpenAI's API has and this server does not: refused by name, where it would change anything.

A value that asks for nothing, such as `functions: []`, passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.gateway.errors import Unsupported

# Field and the values that ask for nothing; null always does.
COMPLETION: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
}
CHAT: Mapping[str, tuple[Any, ...]] = {
    "functions": ([],),  # the older name of tools
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "store": (False,),
    "service_tier": ("auto", "default"),
}


def without_unsupported(body: Any, table: Mapping[str, tuple[Any, ...]]) -> Any:
    """The body without the fields that ask for nothing.

    Raises Unsupported for the first that asks for something.
    """
    if not isinstance(body, dict):
        return body
    for name, harmless in table.items():
        value = body.get(name)
        if value is not None and not any(_same(value, one) for one in harmless):
            rule = "is not supported by this server"
            if harmless:
                rule += f"; leave it out or say {_either(harmless)}"
            raise Unsupported(name, rule, value)
    return {name: value for name, value in body.items() if name not in table}


def _same(value: Any, harmless: Any) -> bool:
    return type(value) is type(harmless) and value == harmless


def _either(values: tuple[Any, ...]) -> str:
    return " or ".join(repr(value) for value in values)
