"""What is compared: systems that continue a prompt by one of their methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from benchmarks.outcome import Outcome
from benchmarks.workload import Case

PLAIN = "autoregressive"
TRANSFORMERS_PLAIN = "transformers"


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair of models to measure; a cost-inflated target stands for cost, not for quality."""

    name: str
    title: str
    inflate: str = ""
    # its part of the time: slow models need more of it for as many repetitions
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decode, by its name in tables, and which system has it."""

    name: str
    system: Literal["draftloop", "transformers"]
    # the method's plain decoding, which its tokens are held against; None: only when greedy
    reference: str
    compares_samples: bool


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("bundled", "the bundled pair as it is"),
        Profile("300M", "target cost-inflated to 300M parameters", "300M", 4),
        Profile("1B", "target cost-inflated to 1B parameters", "1B", 12),
    )
}
METHODS = {
    method.name: method
    for method in (
        Method(PLAIN, "draftloop", PLAIN, True),
        Method("speculative", "draftloop", PLAIN, True),
        Method("prompt_lookup", "draftloop", PLAIN, True),
        # transformers draws from a generator that each method advances differently
        Method(TRANSFORMERS_PLAIN, "transformers", TRANSFORMERS_PLAIN, False),
        Method("transformers assisted", "transformers", TRANSFORMERS_PLAIN, False),
        Method("transformers lookup", "transformers", TRANSFORMERS_PLAIN, False),
    )
}


class System(Protocol):
    """Loaded models, ready to decode; uses no CPU between two calls."""

    def run(self, method: str, case: Case) -> Outcome:
        """Continues the case's prompt by exactly its number of tokens."""
