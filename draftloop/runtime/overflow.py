"""Advice for logits that are not finite, usually because a value was too large for the dtype."""

from __future__ import annotations

NO_NUMBER = "is no finite number (NaN or infinite)"

# By the dtype that values were too large for.
ADVICE = {
    "float16": "serve it in float32 or bfloat16",
    "bfloat16": "serve it in float32",
}
AT_FAULT = "its weights are at fault"


def advice(dtype: str, otherwise: str = AT_FAULT) -> str:
    """What to do about non-finite logits in this dtype; `otherwise` if there is no wider one."""
    return ADVICE.get(dtype, otherwise)
