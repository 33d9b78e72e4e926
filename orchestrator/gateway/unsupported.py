"""Fields of other APIs that this server does not support: refused where they would have an effect.

A value without effect, such as `functions: []`, passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.gateway.errors import Unsupported

Table = Mapping[str, tuple[Any, ...]]

# Fields and their values without effect; null is always one.
OTHERS: Table = {  # vLLM's and llama.cpp's
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "priority": (0,),
    "spaces_between_special_tokens": (True,),
    "return_tokens_as_token_ids": (False,),
    "cache_prompt": (True, False),  # it is always done, and never changes an answer
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
    "echo": (False,),  # a field of text completions
    "best_of": (1,),
}
RESPONSES: Table = {
    **OTHERS,
    "previous_response_id": (),  # no answers are stored here
    "conversation": (),
    "prompt": (),  # a template that OpenAI keeps
    "background": (False,),
    "truncation": ("disabled", "auto"),  # too long input is refused, and clients shorten it
}
MESSAGES: Table = {
    **OTHERS,
    "container": (),
    "mcp_servers": ([],),
    "thread": (),  # no answers are stored here
    "speed": ("standard",),
}


def without_unsupported(body: Any, table: Table) -> Any:
    """The body without the fields of the table.

    Raises Unsupported for the first one whose value would have an effect.
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
