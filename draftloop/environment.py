"""Which variables of the environment are the project's; a name that nobody reads is a mistake."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from draftloop.suggestion import nearest

ENVIRONMENT_PREFIX = "DRAFTLOOP_"
ROLES = ("orchestrator", "drafter", "verifier")

API_KEY = "DRAFTLOOP_API_KEY"
# What a role reads that has no `…_PHRASES_URL` of its own, and `draftloop phrases`; the first wins.
PHRASES_URL = ("DRAFTLOOP_PHRASES_URL", "DRAFTLOOP_PHRASE_LOG")
PROBE_TLS = (
    "DRAFTLOOP_TLS_CA",
    "DRAFTLOOP_TLS_CERTIFICATE",
    "DRAFTLOOP_TLS_KEY",
    "DRAFTLOOP_TLS_SERVER_NAME",
)
# All that are read and are no role's setting.
SHARED = (API_KEY, *PHRASES_URL, *PROBE_TLS)

# Kubernetes and Docker tell of a service `draftloop-verifier` by such names, in every container
# that is linked to it. What ends in _PORT alone has an address with its protocol for a value.
_SERVICE_LINK = re.compile(
    r"(.+_)?SERVICE_(HOST|PORT(_.+)?)=.*"
    r"|(.+_)?PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*"
    r"|(.+_)?PORT=(tcp|udp|sctp)://.*",
    re.DOTALL,
)


def prefix_of(role: str) -> str:
    """What the variables of a role's settings begin with."""
    return f"{ENVIRONMENT_PREFIX}{role.upper()}_"


def shared_phrases_url(environment: Mapping[str, str]) -> str | None:
    """The phrase log of everybody who is told no other one; an empty one is none."""
    return next((url for name in PHRASES_URL if (url := environment.get(name))), None)


def unknown_names(
    prefix: str, settings: Iterable[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Names of ours that nobody reads, each with the nearest of those that somebody does, if any.

    `prefix` is that of the role that starts, `settings` are the names of its settings. Names with
    another role's prefix are that role's to judge. Capitals are all the same, as they are where
    settings are read.
    """
    known = {prefix + setting.upper() for setting in settings} | set(SHARED)
    others = tuple(other for role in ROLES if (other := prefix_of(role)) != prefix)
    return {
        name: _nearest(name.upper(), prefix, known, others)
        for name, value in sorted(environment.items())
        if (read := name.upper()).startswith(ENVIRONMENT_PREFIX)
        and read not in known
        and not read.startswith(others)
        and not _SERVICE_LINK.fullmatch(f"{read.removeprefix(ENVIRONMENT_PREFIX)}={value}")
    }


def _nearest(name: str, prefix: str, known: Collection[str], others: Iterable[str]) -> str:
    """Empty where none is near. Beginnings in common say nothing: they are not compared.

    Where the role's name may be what is misspelt, the setting under another role's is one.
    """
    setting = name.removeprefix(ENVIRONMENT_PREFIX).partition("_")[2]
    meant = [*known, *(other + setting for other in others if setting)]
    common = prefix if name.startswith(prefix) else ENVIRONMENT_PREFIX
    rest = [other.removeprefix(common) for other in meant if other.startswith(common)]
    found = nearest(name.removeprefix(common), rest)
    return found and common + found
