"""constraints.txt pins one version of everything that an installation needs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.contract.repository import ROOT

OURS = "draftloop"
EXTRAS = ("", "orchestrator", "drafter", "verifier", "tracing", "models", "bench", "test", "dev")
DIFFERS = "torch"  # its CUDA requirements depend on the build


def pinned_distributions() -> set[str]:
    """The distributions for which constraints.txt pins one version."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all([each.operator for each in pin.specifier] == ["=="] for pin in pins)
    return {canonicalize_name(pin.name) for pin in pins}


def requirements_of(distribution: str, extra: str) -> list[Requirement]:
    """The requirements of a distribution with this extra, by its metadata; "" is no extra."""
    try:
        requirements = [Requirement(text) for text in requires(distribution) or ()]
    except PackageNotFoundError:  # needed by another extra that is not installed here
        return []
    return [
        each
        for each in requirements
        if each.marker is None or each.marker.evaluate({"extra": extra})
    ]


@pytest.mark.parametrize("extra", EXTRAS)
def test_all_requirements_of_an_extra_are_pinned(extra: str) -> None:
    """`llguidance` was not: two images of the same tag could follow grammars differently."""
    waiting = [(OURS, extra)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        distribution, needed_extra = waiting.pop()
        if (distribution, needed_extra) in seen:
            continue
        seen.add((distribution, needed_extra))
        if distribution != DIFFERS:
            for each in requirements_of(distribution, needed_extra):
                name = canonicalize_name(each.name)
                waiting += [(name, inner) for inner in ("", *each.extras)]
    missing = {name for name, _ in seen} - {OURS} - pinned_distributions()
    assert not missing
