"""The project's environment variables; a variable of ours that nothing reads is a mistake."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from draftloop.suggestion import nearest

ENVIRONMENT_PREFIX = "DRAFTLOOP_"
ROLES = ("orchestrator", "drafter", "verifier")

API_KEY = "DRAFTLOOP_API_KEY"
# Read by roles that have no `…_PHRASES_URL` of their own, and by `draftloop phrases`. The first one
# that is set wins.
PHRASES_URL = ("DRAFTLOOP_PHRASES_URL", "DRAFTLOOP_PHRASE_LOG")
PROBE_TLS = (
    "DRAFTLOOP_TLS_CA",
    "DRAFTLOOP_TLS_CERTIFICATE",
    "DRAFTLOOP_TLS_KEY",
    "DRAFTLOOP_TLS_SERVER_NAME",
)
# All variables that are read but are not a role's setting.
SHARED = (API_KEY, *PHRASES_URL, *PROBE_TLS)

# For a service called `draftloop-verifier`, Kubernetes and Docker set variables with such names in
# every container that is linked to it. The value of a name that ends in _PORT is then an address
# with its protocol.
_SERVICE_LINK = re.compile(
    r"(.+_)?SERVICE_(HOST|PORT(_.+)?)=.*"
    r"|(.+_)?PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*"
    r"|(.+_)?PORT=(tcp|udp|sctp)://.*",
    re.DOTALL,
)


def prefix_of(role: str) -> str:
    """Prefix of the variables that hold a role's settings."""
    return f"{ENVIRONMENT_PREFIX}{role.upper()}_"


def shared_phrases_url(environment: Mapping[str, str]) -> str | None:
    """URL of the phrase log for whatever has no setting of its own; None if empty or unset."""
    return next((url for name in PHRASES_URL if (url := environment.get(name))), None)


def unknown_names(
    prefix: str, settings: Iterable[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Variables with our prefix that nothing reads, each with the nearest known name.

    `prefix` is that of the role that is starting, and `settings` are the names of its settings. The
    nearest name is empty if none is similar. Names with another role's prefix are left for that
    role to check. Case is ignored, as it is when settings are read.
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
    """The known name most similar to `name`, compared without the common prefix; empty if none is.

    If the role's name may be misspelt, the same setting under the other roles is a candidate too.
    """
    setting = name.removeprefix(ENVIRONMENT_PREFIX).partition("_")[2]
    meant = [*known, *(other + setting for other in others if setting)]
    common = prefix if name.startswith(prefix) else ENVIRONMENT_PREFIX
    rest = [other.removeprefix(common) for other in meant if other.startswith(common)]
    found = nearest(name.removeprefix(common), rest)
    return found and common + found
