"""All notations that can be read, and the detection of the one that a chat template shows."""

from __future__ import annotations

import re

from orchestrator.gateway import harmony
from orchestrator.gateway.tools.deepseek import DEEPSEEK
from orchestrator.gateway.tools.glm45 import GLM45, KEY
from orchestrator.gateway.tools.harmony import HARMONY
from orchestrator.gateway.tools.hermes import HERMES
from orchestrator.gateway.tools.kimi_k2 import KIMI_K2
from orchestrator.gateway.tools.llama3_json import LLAMA3_JSON
from orchestrator.gateway.tools.minimax_m2 import MINIMAX_M2
from orchestrator.gateway.tools.mistral import MISTRAL
from orchestrator.gateway.tools.notation import Notation, NotationName
from orchestrator.gateway.tools.pythonic import PYTHONIC
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER

NOTATIONS: dict[NotationName, Notation] = {
    one.name: one
    for one in (
        HERMES, LLAMA3_JSON, MISTRAL, QWEN3_CODER, PYTHONIC, HARMONY, DEEPSEEK, KIMI_K2, GLM45,
        MINIMAX_M2,
    )
}  # fmt: skip
# Notations that are recognized by the mark before their calls alone.
MARKED = (HERMES, MISTRAL, DEEPSEEK, KIMI_K2, MINIMAX_M2)

LLAMA = re.compile(r'<\|python_tag\|>|"name": function name, "parameters"')
EXAMPLE_IN_PYTHON = re.compile(r"\[\w+\(\w+=")


def detect_notation(template: str) -> Notation | None:
    """The notation that a chat template shows; None if it shows none that is known."""
    if harmony.uses_harmony(template):
        return HARMONY
    if QWEN3_CODER.begin in template and QWEN3_CODER.opening in template:
        return QWEN3_CODER
    if GLM45.begin in template and KEY in template:
        return GLM45
    if QWEN3_CODER.opening in template:  # without the mark it is another family's
        return None
    if marked := next((one for one in MARKED if one.begin in template), None):
        return marked
    if EXAMPLE_IN_PYTHON.search(template):
        return PYTHONIC
    return LLAMA3_JSON if LLAMA.search(template) else None
