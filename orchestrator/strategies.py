"""The strategies a request may name, as far as the orchestrator must know them."""

from __future__ import annotations

AUTOREGRESSIVE = "autoregressive"
SPECULATIVE = "speculative"
PROMPT_LOOKUP = "prompt_lookup"

# Autoregressive decoding asks no drafter; the others are run by the drafter service.
STRATEGIES = (AUTOREGRESSIVE, SPECULATIVE, PROMPT_LOOKUP)
