"""The compared systems, the methods by which each continues a prompt, and the profiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol

from benchmarks.outcome import Outcome
from benchmarks.workload import Case
from draftloop.phrase import PhraseScope
from draftloop.speculation import (
    AUTOREGRESSIVE,
    CASCADE,
    DRAFTER_STRATEGIES,
    FUSED,
    LOOKAHEAD,
    OPT_TREE,
    OUROBOROS,
    PROMPT_LOOKUP,
    SPECULATIVE,
    TOKEN_RECYCLING,
    FusedParameters,
    OuroborosParameters,
    Speculation,
)

PLAIN = AUTOREGRESSIVE
# Prefixes of the names of methods that measure one strategy part by part.
ABLATIONS = {strategy: f"{strategy}:" for strategy in (OUROBOROS, FUSED)}
ALL_PARTS = OuroborosParameters()
ALL_SOURCES = FusedParameters()
SOURCES = tuple(field.name for field in fields(FusedParameters))
NO_SPECULATION = Speculation(strategy=PLAIN, phrases=PhraseScope.OFF)
TRANSFORMERS_PLAIN = "transformers"


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair of models to measure; a cost-inflated one stands for cost, not for quality."""

    name: str
    title: str
    inflate: str = ""
    draft: str = "drafter"  # the bundled model that drafts
    draft_inflate: str = ""
    smaller: tuple[str, ...] = ()  # further draft models for a cascade
    # its share of the time: slow models need more for the same number of repetitions
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decode: its name in tables, and the system that has it."""

    name: str
    system: Literal["draftloop", "transformers"]
    # the plain decoding with which the method's tokens are compared
    reference: str = PLAIN
    # whether sampled tokens are expected to be equal too
    compares_samples: bool = True
    # how our services draft; ignored for transformers
    speculation: Speculation = NO_SPECULATION
    # whose phrases it reads: none (cold), or those of requests similar to the measured ones (warm)
    pool: Literal["cold", "warm"] = "cold"


def _speculation(
    strategy: str,
    ouroboros: OuroborosParameters = ALL_PARTS,
    fused: FusedParameters = ALL_SOURCES,
) -> Speculation:
    """Reads phrases but shares none, so that a measurement does not help the next one."""
    return Speculation(
        strategy=strategy, phrases=PhraseScope.READ_ONLY, ouroboros=ouroboros, fused=fused
    )


def _ouroboros_by_part() -> Iterator[Method]:
    """Ouroboros' parts one by one; harvest and history take effect only through lengthening."""
    parts = ("draft_by_phrases", "lengthen", "harvest", "history", "phrases_alone")
    off = dict.fromkeys(parts, False)
    for name, on in (
        ("no part", ()),
        ("drafting", ("draft_by_phrases",)),
        ("lengthening", ("lengthen",)),
        ("harvest", ("lengthen", "harvest")),
        ("history", ("lengthen", "history")),
        ("phrases alone", ("harvest", "history", "phrases_alone")),
        ("all", parts),
    ):
        switches = OuroborosParameters(**{**off, **dict.fromkeys(on, True)})  # type: ignore[arg-type]
        pool: Literal["cold", "warm"] = "warm" if switches.history else "cold"
        method = f"{ABLATIONS[OUROBOROS]} {name}"
        yield Method(method, "draftloop", speculation=_speculation(OUROBOROS, switches), pool=pool)


def _fused_by_source() -> Iterator[Method]:
    """All sources, all but one, and one alone; with a warm pool, so that phrases have an effect."""
    cases = {"all": set(SOURCES)}
    cases |= {f"without {source}": set(SOURCES) - {source} for source in SOURCES}
    cases |= {f"only {source}": {source} for source in SOURCES}
    for name, on in cases.items():
        switches = FusedParameters(**{source: source in on for source in SOURCES})
        method = f"{ABLATIONS[FUSED]} {name}"
        chosen = _speculation(FUSED, fused=switches)
        yield Method(method, "draftloop", speculation=chosen, pool="warm")


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("bundled", "the bundled pair as it is"),
        Profile("300M", "target cost-inflated to 300M parameters", "300M", weight=4),
        Profile("1B", "target cost-inflated to 1B parameters", "1B", weight=12),
    )
}
MAIN_PROFILES = tuple(PROFILES)
# For GPUs, where a forward of the smaller models takes less time than a draft.
PROFILES["13B"] = Profile("13B", "target cost-inflated to 13B parameters", "13B", weight=20)
# Like the papers' pairs: the draft model has a tenth of the target's size.
PROFILES["300M-30M"] = Profile(
    "300M-30M",
    "target cost-inflated to 300M parameters, draft model to 30M",
    "300M",
    draft_inflate="30M",
    weight=6,
)
PROFILES |= {
    f"{name}-large": dataclasses.replace(
        PROFILES[name],
        name=f"{name}-large",
        title=f"{PROFILES[name].title}, larger draft model",
        draft="drafter-large",
        smaller=("drafter",),
    )
    for name in ("300M", "1B")
}
METHODS = {
    method.name: method
    for method in (
        Method(PLAIN, "draftloop"),
        Method(SPECULATIVE, "draftloop", speculation=_speculation(SPECULATIVE)),
        Method(PROMPT_LOOKUP, "draftloop", speculation=_speculation(PROMPT_LOOKUP)),
        Method(LOOKAHEAD, "draftloop", speculation=_speculation(LOOKAHEAD)),
        Method("ouroboros cold", "draftloop", speculation=_speculation(OUROBOROS)),
        Method("ouroboros warm", "draftloop", speculation=_speculation(OUROBOROS), pool="warm"),
        Method(OPT_TREE, "draftloop", speculation=_speculation(OPT_TREE)),
        Method(CASCADE, "draftloop", speculation=_speculation(CASCADE)),
        Method(TOKEN_RECYCLING, "draftloop", speculation=_speculation(TOKEN_RECYCLING)),
        Method("fused cold", "draftloop", speculation=_speculation(FUSED)),
        Method("fused warm", "draftloop", speculation=_speculation(FUSED), pool="warm"),
        *_ouroboros_by_part(),
        *_fused_by_source(),
        # transformers draws from a generator that each method advances in its own way
        *(
            Method(name, "transformers", TRANSFORMERS_PLAIN, False)
            for name in (TRANSFORMERS_PLAIN, "transformers assisted", "transformers lookup")
        ),
    )
}


COMPARED = [name for name in METHODS if not name.startswith(tuple(ABLATIONS.values()))]
# Methods for a short run: at least one for each paper.
MAIN = [
    PLAIN,
    SPECULATIVE,
    PROMPT_LOOKUP,
    "ouroboros cold",
    OPT_TREE,
    CASCADE,
    TOKEN_RECYCLING,
    "fused cold",
    "fused warm",
]


def by_part(strategy: str) -> list[str]:
    """The methods that measure `strategy` part by part, and plain decoding."""
    prefix = ABLATIONS[strategy]
    return [PLAIN, *(name for name in METHODS if name.startswith(prefix))]


def asks_drafter(method: str) -> bool:
    """Whether its strategy uses the drafter service."""
    return METHODS[method].speculation.strategy in DRAFTER_STRATEGIES


def unserved(methods: Iterable[str], by_drafter: Sequence[str]) -> dict[str, str]:
    """Methods whose strategy the drafter does not serve, with the reason for leaving them out.

    Their requests would still be answered, but drafted from phrases alone, and so measure something
    else.
    """
    return {
        name: "the drafter does not serve this strategy"
        for name in methods
        if asks_drafter(name) and METHODS[name].speculation.strategy not in by_drafter
    }


class System(Protocol):
    """Loaded models, ready to decode; uses no CPU between calls."""

    def run(self, method: str, case: Case) -> Outcome:
        """Continues the case's prompt by exactly its number of tokens."""
