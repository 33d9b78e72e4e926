"""What is no finite number, most often since it was too large for the dtype, and what helps."""

from __future__ import annotations

NO_NUMBER = "is no finite number (NaN or infinite)"

# By the dtype that numbers were too large for.
ADVICE = {
    "float16": "serve it in float32 or bfloat16",
    "bfloat16": "serve it in float32",
}
AT_FAULT = "its weights are at fault"


def advice(dtype: str, otherwise: str = AT_FAULT) -> str:
    """What to do where a model says such things in this dtype; `otherwise` in the widest one."""
    return ADVICE.get(dtype, otherwise)
