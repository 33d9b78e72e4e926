"""What others' APIs have and this server has not: refused by name, where it would change anything.

A value that asks for nothing, such as `functions: []`, passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.gateway.errors import Unsupported

Table = Mapping[str, tuple[Any, ...]]

# Field and the values that ask for nothing; null always does.
OTHERS: Table = {  # vLLM's and llama.cpp's
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "priority": (0,),
    "spaces_between_special_tokens": (True,),
    "return_tokens_as_token_ids": (False,),
    "cache_prompt": (True, False),  # which is always done, and never changes an answer
}
COMPLETION: Table = {
    **OTHERS,
    "suffix": ("",),
}
CHAT: Table = {
    **OTHERS,
    "functions": ([],),  # the older name of tools
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "echo": (False,),  # what completions have
    "best_of": (1,),
}
RESPONSES: Table = {
    **OTHERS,
    "previous_response_id": (),  # nothing is kept
    "conversation": (),
    "prompt": (),  # a template that OpenAI keeps
    "background": (False,),
    "truncation": ("disabled", "auto"),  # what is too long is refused: clients shorten it
}
MESSAGES: Table = {
    **OTHERS,
    "container": (),
    "mcp_servers": ([],),
    "thread": (),  # nothing is kept
    "speed": ("standard",),
}


def without_unsupported(body: Any, table: Table) -> Any:
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
