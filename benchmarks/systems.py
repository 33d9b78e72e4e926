"""What is compared: systems that continue a prompt by one of their methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from benchmarks.outcome import Outcome
from benchmarks.workload import Case
from draftloop.phrase import PhraseScope
from draftloop.speculation import (
    AUTOREGRESSIVE,
    LOOKAHEAD,
    OUROBOROS,
    PROMPT_LOOKUP,
    SPECULATIVE,
    OuroborosParameters,
    Speculation,
)

PLAIN = AUTOREGRESSIVE
ABLATION = "ouroboros:"
ALL_PARTS = OuroborosParameters()
NO_SPECULATION = Speculation(strategy=PLAIN, phrases=PhraseScope.OFF)
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
    # the method's plain decoding, which its tokens are held against
    reference: str = PLAIN
    # whether sampled tokens are to be equal too
    compares_samples: bool = True
    # how our services draft; nothing to transformers
    speculation: Speculation = NO_SPECULATION
    # whose phrases it reads: nobody's, or those of requests like the measured ones
    pool: Literal["cold", "warm"] = "cold"


def _of(strategy: str, ouroboros: OuroborosParameters = ALL_PARTS) -> Speculation:
    """Reads phrases and shares none: what is measured must not help what is measured next."""
    return Speculation(strategy=strategy, phrases=PhraseScope.READ_ONLY, ouroboros=ouroboros)


def _ablation() -> Iterator[Method]:
    """Ouroboros' parts one by one; harvest and history are worth what lengthening makes of them."""
    off = {"draft_by_phrases": False, "lengthen": False, "harvest": False, "history": False}
    for name, on in (
        ("no part", ()),
        ("drafting", ("draft_by_phrases",)),
        ("lengthening", ("lengthen",)),
        ("harvest", ("lengthen", "harvest")),
        ("history", ("lengthen", "history")),
    ):
        parts = OuroborosParameters(**{**off, **dict.fromkeys(on, True)})  # type: ignore[arg-type]
        pool: Literal["cold", "warm"] = "warm" if name == "history" else "cold"
        method = f"{ABLATION} {name}"
        yield Method(method, "draftloop", speculation=_of(OUROBOROS, parts), pool=pool)


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
        Method(PLAIN, "draftloop"),
        Method(SPECULATIVE, "draftloop", speculation=_of(SPECULATIVE)),
        Method(PROMPT_LOOKUP, "draftloop", speculation=_of(PROMPT_LOOKUP)),
        Method(LOOKAHEAD, "draftloop", speculation=_of(LOOKAHEAD)),
        Method("ouroboros cold", "draftloop", speculation=_of(OUROBOROS)),
        Method("ouroboros warm", "draftloop", speculation=_of(OUROBOROS), pool="warm"),
        *_ablation(),
        # transformers draws from a generator that each method advances differently
        *(
            Method(name, "transformers", TRANSFORMERS_PLAIN, False)
            for name in (TRANSFORMERS_PLAIN, "transformers assisted", "transformers lookup")
        ),
    )
}


class System(Protocol):
    """Loaded models, ready to decode; uses no CPU between two calls."""

    def run(self, method: str, case: Case) -> Outcome:
        """Continues the case's prompt by exactly its number of tokens."""
