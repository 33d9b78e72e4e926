"""Reads cost curves from results of benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bundled_pair import smaller_role
from benchmarks.systems import PROFILES, Profile
from draftloop.errors import InvalidInput
from draftloop.model_info import CostPoint

Curve = tuple[CostPoint, ...]


def read_profiles(files: Iterable[str]) -> dict[str, Any]:
    """Descriptions of profiles in results; if several files have a profile, the first one counts.

    Raises OSError if a file cannot be read, and InvalidInput if it has no profiles.
    """
    read = [_profiles_in(file) for file in files]
    return {
        name: description for profiles in reversed(read) for name, description in profiles.items()
    }


def _profiles_in(file: str) -> dict[str, Any]:
    try:
        profiles = json.loads(Path(file).read_text(encoding="utf-8"))["profiles"]
    except (ValueError, TypeError, KeyError):
        profiles = None
    if not isinstance(profiles, dict) or not profiles.keys() <= PROFILES.keys():
        raise InvalidInput("costs", "must be results that benchmarks.run wrote", file)
    return profiles


def points_of(profile: Mapping[str, Any], role: str) -> Curve:
    """A role's cost curve, by tokens of one session, from one of the results' `profiles`."""
    known = profile[role]["forward_ms_by_tokens"].items()
    return tuple(CostPoint(int(tokens), int(1e6 * ms)) for tokens, ms in known)


def curves_of(profile: Profile, recorded: Mapping[str, Any]) -> dict[str, Curve]:
    """Cost curves of all models of a profile.

    They come from the record of the profile itself, or else of another one with the same model.
    Raises InvalidInput if there is none.
    """
    known = [PROFILES[name] for name in (profile.name, *recorded) if name in recorded]

    def curve(role: str, names: Iterable[str]) -> Curve:
        if (name := next(iter(names), None)) is None:
            rule = f"must be among those whose {role}'s costs the results of --costs have"
            raise InvalidInput("profiles", rule, profile.name)
        return points_of(recorded[name], role)

    def drafter(draft: str, inflate: str) -> Curve:
        models = (one.name for one in known if (one.draft, one.draft_inflate) == (draft, inflate))
        return curve("drafter", models)

    return {
        "verifier": curve(
            "verifier", (one.name for one in known if one.inflate == profile.inflate)
        ),
        "drafter": drafter(profile.draft, profile.draft_inflate),
        **{smaller_role(place): drafter(name, "") for place, name in enumerate(profile.smaller)},
    }


def part_of(curve: Curve, share: float) -> Curve:
    """The curve of a model that takes `share` of the time."""
    return tuple(CostPoint(point.tokens, round(share * point.forward_ns)) for point in curve)
