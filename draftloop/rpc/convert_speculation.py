"""Converts a request's speculation parameters to and from the wire's messages."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from draftloop.errors import InvalidInput
from draftloop.lookahead import LookaheadParameters
from draftloop.phrase import PhraseAccess, PhraseScope
from draftloop.rpc.fields import field_names, field_values, require_max_entries
from draftloop.speculation import (
    MAX_CASCADE_TOKENS,
    CascadeParameters,
    FusedParameters,
    OptTreeParameters,
    OuroborosParameters,
    Speculation,
)
from protos import drafter_pb2, generation_pb2
from protos import speculation_pb2 as pb

Parameters = TypeVar(
    "Parameters",
    LookaheadParameters,
    OuroborosParameters,
    OptTreeParameters,
    CascadeParameters,
    FusedParameters,
)

_SCOPES = {
    PhraseScope.SHARED: pb.PHRASE_SCOPE_SHARED,
    PhraseScope.PRIVATE: pb.PHRASE_SCOPE_PRIVATE,
    PhraseScope.OFF: pb.PHRASE_SCOPE_OFF,
    PhraseScope.READ_ONLY: pb.PHRASE_SCOPE_READ_ONLY,
}
_SCOPES_BY_NUMBER: dict[int, PhraseScope] = {number: scope for scope, number in _SCOPES.items()}
_LOOKAHEAD = field_names(LookaheadParameters)
_PLAIN_OUROBOROS = field_names(OuroborosParameters, exclude=["lookahead"])
_OPT_TREE = field_names(OptTreeParameters)
_PLAIN_CASCADE = field_names(CascadeParameters, exclude=["matrix"])
_FUSED = field_names(FusedParameters)


def scope_to_pb(scope: PhraseScope) -> pb.PhraseScope:
    """Converts a phrase scope to its number."""
    return _SCOPES[scope]


def scope_from_pb(number: int) -> PhraseScope:
    """A phrase scope as received; unset means shared. Raises InvalidInput for an unknown one."""
    if number == pb.PHRASE_SCOPE_UNSPECIFIED:
        return PhraseScope.SHARED
    if number not in _SCOPES_BY_NUMBER:
        rule = f"must be one of {', '.join(PhraseScope)}"
        raise InvalidInput("speculation.phrases", rule, number)
    return _SCOPES_BY_NUMBER[number]


def access_to_pb(access: PhraseAccess) -> drafter_pb2.PhraseAccess:
    """Converts phrase access to its message."""
    return drafter_pb2.PhraseAccess(
        scope=scope_to_pb(access.scope),
        target_fingerprint=access.target_fingerprint,
        tenant=access.tenant,
        origin=access.origin,
    )


def access_from_pb(message: drafter_pb2.PhraseAccess) -> PhraseAccess:
    """Phrase access as received. Raises InvalidInput for an unknown scope."""
    return PhraseAccess(
        scope=scope_from_pb(message.scope),
        target_fingerprint=message.target_fingerprint,
        tenant=message.tenant,
        origin=message.origin,
    )


def ouroboros_to_pb(parameters: OuroborosParameters) -> pb.OuroborosParameters:
    """Converts Ouroboros' parameters to their message."""
    lookahead = _lookahead_to_pb(parameters.lookahead)
    return pb.OuroborosParameters(lookahead=lookahead, **field_values(parameters, _PLAIN_OUROBOROS))


def ouroboros_from_pb(message: pb.OuroborosParameters) -> OuroborosParameters:
    """Ouroboros' parameters as received; absent fields have their defaults."""
    default = OuroborosParameters()
    fields = _present_fields(message, _PLAIN_OUROBOROS)
    lookahead = _lookahead_from_pb(message.lookahead, default.lookahead)
    return _with_fields(default, {**fields, "lookahead": lookahead})


def opt_tree_to_pb(parameters: OptTreeParameters) -> pb.OptTreeParameters:
    """Converts OPT-Tree's parameters to their message."""
    return pb.OptTreeParameters(**field_values(parameters, _OPT_TREE))


def opt_tree_from_pb(message: pb.OptTreeParameters) -> OptTreeParameters:
    """OPT-Tree's parameters as received; absent fields have their defaults."""
    return _with_fields(OptTreeParameters(), _present_fields(message, _OPT_TREE))


def cascade_to_pb(parameters: CascadeParameters) -> pb.CascadeParameters:
    """Converts the cascade's parameters to their message."""
    rows = [pb.CascadeRow(tokens=row) for row in parameters.matrix]
    return pb.CascadeParameters(matrix=rows, **field_values(parameters, _PLAIN_CASCADE))


def cascade_from_pb(message: pb.CascadeParameters) -> CascadeParameters:
    """The cascade's parameters as received; absent fields have their defaults.

    Raises InvalidInput if the matrix is larger than any valid one.
    """
    require_max_entries("cascade.matrix", message.matrix, MAX_CASCADE_TOKENS)
    for row in message.matrix:
        require_max_entries("cascade.matrix", row.tokens, MAX_CASCADE_TOKENS)
    matrix = tuple(tuple(row.tokens) for row in message.matrix)
    return _with_fields(CascadeParameters(matrix=matrix), _present_fields(message, _PLAIN_CASCADE))


def speculation_to_pb(speculation: Speculation) -> generation_pb2.SpeculationParameters:
    """Converts speculation parameters to their message."""
    return generation_pb2.SpeculationParameters(
        strategy=speculation.strategy,
        max_draft_tokens=speculation.max_draft_tokens,
        phrases=scope_to_pb(speculation.phrases),
        lookahead=_lookahead_to_pb(speculation.lookahead),
        ouroboros=ouroboros_to_pb(speculation.ouroboros),
        opt_tree=opt_tree_to_pb(speculation.opt_tree),
        cascade=cascade_to_pb(speculation.cascade),
        fused=pb.FusedParameters(**field_values(speculation.fused, _FUSED)),
    )


def speculation_from_pb(message: generation_pb2.SpeculationParameters) -> Speculation:
    """Speculation parameters as received, not validated, except for scope and matrix size."""
    has_draft_limit = message.HasField("max_draft_tokens")
    return Speculation(
        strategy=message.strategy,
        max_draft_tokens=message.max_draft_tokens if has_draft_limit else None,
        phrases=scope_from_pb(message.phrases),
        lookahead=_lookahead_from_pb(message.lookahead, LookaheadParameters()),
        ouroboros=ouroboros_from_pb(message.ouroboros),
        opt_tree=opt_tree_from_pb(message.opt_tree),
        cascade=cascade_from_pb(message.cascade),
        fused=_with_fields(FusedParameters(), _present_fields(message.fused, _FUSED)),
    )


def _lookahead_to_pb(parameters: LookaheadParameters) -> pb.LookaheadParameters:
    return pb.LookaheadParameters(**field_values(parameters, _LOOKAHEAD))


def _lookahead_from_pb(
    message: pb.LookaheadParameters, default: LookaheadParameters
) -> LookaheadParameters:
    return _with_fields(default, _present_fields(message, _LOOKAHEAD))


def _present_fields(message: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    return field_values(message, filter(message.HasField, fields))


def _with_fields(default: Parameters, fields: dict[str, Any]) -> Parameters:
    return dataclasses.replace(default, **fields)
