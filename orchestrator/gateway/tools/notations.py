"""All notations that are read, and which one a chat template shows."""

from __future__ import annotations

import re

from orchestrator.gateway import harmony
from orchestrator.gateway.tools.harmony import HARMONY
from orchestrator.gateway.tools.hermes import HERMES
from orchestrator.gateway.tools.llama3_json import LLAMA3_JSON
from orchestrator.gateway.tools.mistral import MISTRAL
from orchestrator.gateway.tools.notation import Notation, NotationName
from orchestrator.gateway.tools.pythonic import PYTHONIC
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER

NOTATIONS: dict[NotationName, Notation] = {
    one.name: one for one in (HERMES, LLAMA3_JSON, MISTRAL, QWEN3_CODER, PYTHONIC, HARMONY)
}

OTHERS = re.compile(r"<function=|<arg_key>")  # between marks that are read here
LLAMA = re.compile(r'<\|python_tag\|>|"name": function name, "parameters"')
EXAMPLE_IN_PYTHON = re.compile(r"\[\w+\(\w+=")


def detected(template: str) -> Notation | None:
    """The one that a chat template shows; None where it shows none that is known."""
    if harmony.is_shown(template):
        return HARMONY
    if QWEN3_CODER.begin in template and QWEN3_CODER.opening in template:
        return QWEN3_CODER
    if OTHERS.search(template):
        return None
    if HERMES.begin in template:
        return HERMES
    if MISTRAL.begin in template:
        return MISTRAL
    if EXAMPLE_IN_PYTHON.search(template):
        return PYTHONIC
    return LLAMA3_JSON if LLAMA.search(template) else None
