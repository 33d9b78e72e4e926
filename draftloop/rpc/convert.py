"""Converts between our own types and the wire's messages. Stub types stay within this layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from draftloop.bans import MAX_SEQUENCES, NO_BANS, Bans
from draftloop.errors import InvalidInput
from draftloop.grammar import Format, Grammar
from draftloop.load import ServiceLoad
from draftloop.logprobs import PromptLogprobs, TokenLogprobs
from draftloop.model_info import CostPoint, ModelInfo
from draftloop.request import NEVER_ZERO, GenerationParameters, SamplingParameters
from draftloop.rpc.convert_speculation import speculation_from_pb, speculation_to_pb
from draftloop.rpc.fields import field_names, field_values, require_max_entries
from draftloop.tree import DraftEnd, DraftTree, ServiceTimings, TokenSource, Verdict
from protos import generation_pb2, verifier_pb2
from protos import speculation_pb2 as pb

# What every round carries is converted field by field below, which takes half the time.
_COST_POINT = field_names(CostPoint)
_PLAIN_MODEL_INFO = field_names(ModelInfo, exclude=["strategies", "stop_token_ids", "cost_curve"])


def tree_to_pb(tree: DraftTree) -> pb.DraftTree:
    """Converts a draft tree to its message."""
    return pb.DraftTree(
        token_ids=tree.token_ids,
        parents=tree.parents,
        estimates=tree.estimates,
        sources=tree.sources,  # type: ignore[arg-type]
    )


def tree_from_pb(message: pb.DraftTree) -> DraftTree:
    """A draft tree as received, not validated. Raises InvalidInput for unknown sources."""
    return DraftTree(
        token_ids=tuple(message.token_ids),
        parents=tuple(message.parents),
        estimates=tuple(message.estimates),
        sources=tuple(_source(value) for value in message.sources),
    )


def _source(value: int) -> TokenSource:
    try:
        return TokenSource(value)
    except ValueError:
        raise InvalidInput("draft.sources", "must be a known token source", value) from None


def draft_end_from_pb(value: int) -> DraftEnd:
    """What ended a draft; NONE for a reason that this side does not know."""
    return DraftEnd(value) if value in DraftEnd.__members__.values() else DraftEnd.NONE


def verdict_to_pb(verdict: Verdict) -> pb.Verdict:
    """Converts a verdict to its message."""
    message = judgement_to_pb(verdict)
    message.successor_ids.extend(verdict.successor_ids)
    message.logprobs.extend(logprobs_to_pb(verdict.logprobs))
    return message


def judgement_to_pb(verdict: Verdict) -> pb.Verdict:
    """Converts the part of a verdict that drafters read."""
    return pb.Verdict(
        accepted_nodes=verdict.accepted_nodes,
        emitted_token_ids=verdict.emitted_token_ids,
        root_prediction=verdict.root_prediction,
        node_predictions=verdict.node_predictions,
        stopped=verdict.stopped,
    )


def verdict_from_pb(message: pb.Verdict) -> Verdict:
    """A verdict as received, not validated."""
    return Verdict(
        accepted_nodes=tuple(message.accepted_nodes),
        emitted_token_ids=tuple(message.emitted_token_ids),
        root_prediction=message.root_prediction,
        node_predictions=tuple(message.node_predictions),
        stopped=message.stopped,
        successor_ids=tuple(message.successor_ids),
        logprobs=logprobs_from_pb(message.logprobs),
    )


def logprobs_to_pb(logprobs: Sequence[TokenLogprobs]) -> list[pb.TokenLogprobs]:
    """Converts log-probabilities to their messages."""
    return [
        pb.TokenLogprobs(
            token_id=entry.token_id,
            logprob=entry.logprob,
            top_token_ids=[token for token, _ in entry.top],
            top_logprobs=[logprob for _, logprob in entry.top],
        )
        for entry in logprobs
    ]


def logprobs_from_pb(messages: Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities as received. Raises InvalidInput if top tokens lack theirs."""
    return tuple(_token_logprobs(message) for message in messages)


def _token_logprobs(message: pb.TokenLogprobs) -> TokenLogprobs:
    top_token_ids, top_logprobs = message.top_token_ids, message.top_logprobs
    if len(top_token_ids) != len(top_logprobs):
        rule = f"must have one entry for each of {len(top_token_ids)} top_token_ids"
        raise InvalidInput("logprobs.top_logprobs", rule, f"{len(top_logprobs)} entries")
    top = tuple(zip(top_token_ids, top_logprobs, strict=True))
    return TokenLogprobs(message.token_id, message.logprob, top)


def prompt_logprobs_to_pb(logprobs: PromptLogprobs | None) -> pb.PromptLogprobs | None:
    """Converts a prompt's log-probabilities to their message; None if there are none."""
    return (
        None
        if logprobs is None
        else pb.PromptLogprobs(**field_values(logprobs, field_names(PromptLogprobs)))
    )


def prompt_logprobs_from_pb(
    answer: generation_pb2.GenerateResponse
    | generation_pb2.GenerateOnceResponse
    | verifier_pb2.VerifyResponse,
) -> PromptLogprobs | None:
    """A prompt's log-probabilities as received; None if the answer has none."""
    if not answer.HasField("prompt_logprobs"):
        return None
    message = answer.prompt_logprobs
    lists = field_values(message, field_names(PromptLogprobs, exclude=["count"]))
    return PromptLogprobs(count=message.count, **{name: list(lists[name]) for name in lists})


def sampling_to_pb(parameters: SamplingParameters) -> pb.SamplingParameters:
    """Converts sampling parameters to their message."""
    return pb.SamplingParameters(
        temperature=parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        min_p=parameters.min_p,
        repetition_penalty=parameters.repetition_penalty,
        presence_penalty=parameters.presence_penalty,
        frequency_penalty=parameters.frequency_penalty,
        logit_bias=dict(parameters.logit_bias),
        bans=_bans_to_pb(parameters.bans) if parameters.bans.any else None,
        grammar=_grammar_to_pb(parameters.grammar),
        seed=parameters.seed,
    )


def sampling_from_pb(message: pb.SamplingParameters) -> SamplingParameters:
    """Sampling parameters as received, not validated; absent fields mean off.

    Raises InvalidInput only if there are too many bans.
    """
    return SamplingParameters(
        temperature=message.temperature,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        bans=_bans_from_pb(message.bans) if message.HasField("bans") else NO_BANS,
        grammar=_grammar_from_pb(message.grammar) if message.HasField("grammar") else None,
        seed=message.seed,
        **field_values(message, filter(message.HasField, NEVER_ZERO)),
    )


def _bans_to_pb(bans: Bans) -> pb.Bans:
    return pb.Bans(
        allowed_token_ids=bans.allowed,
        sequences=[pb.TokenSequence(token_ids=each) for each in bans.sequences],
        min_tokens=bans.min_tokens,
        ends=bans.ends,
    )


def _bans_from_pb(message: pb.Bans) -> Bans:
    require_max_entries("bans.sequences", message.sequences, MAX_SEQUENCES)
    return Bans(
        allowed=tuple(message.allowed_token_ids),
        sequences=tuple(tuple(each.token_ids) for each in message.sequences),
        min_tokens=message.min_tokens,
        ends=tuple(message.ends),
    )


def _grammar_to_pb(grammar: Grammar | None) -> pb.Grammar | None:
    return None if grammar is None else pb.Grammar(**{grammar.format: grammar.text})


def _grammar_from_pb(message: pb.Grammar) -> Grammar:
    kind = message.WhichOneof("kind")
    return Grammar(cast(Format, kind or ""), getattr(message, kind) if kind else "")


def timings_to_pb(timings: ServiceTimings) -> pb.ServiceTimings:
    """Converts a service's timings to their message."""
    return pb.ServiceTimings(
        service_ns=timings.service_ns,
        forward_ns=timings.forward_ns,
        queue_ns=timings.queue_ns,
        forwards=timings.forwards,
        batch_size=timings.batch_size,
        batch_rows=timings.batch_rows,
        waiting=timings.waiting,
        prompt_rows=timings.prompt_rows,
        prompts=timings.prompts,
        prompts_ns=timings.prompts_ns,
        cached_tokens=timings.cached_tokens,
    )


def timings_from_pb(message: pb.ServiceTimings) -> ServiceTimings:
    """A service's timings as received."""
    return ServiceTimings(
        service_ns=message.service_ns,
        forward_ns=message.forward_ns,
        queue_ns=message.queue_ns,
        forwards=message.forwards,
        batch_size=message.batch_size,
        batch_rows=message.batch_rows,
        waiting=message.waiting,
        prompt_rows=message.prompt_rows,
        prompts=message.prompts,
        prompts_ns=message.prompts_ns,
        cached_tokens=message.cached_tokens,
    )


def load_to_pb(load: ServiceLoad) -> pb.ServiceLoad:
    """Converts a service's load to its message."""
    return pb.ServiceLoad(
        running_sessions=load.running_sessions,
        waiting_sessions=load.waiting_sessions,
        answer_ns=load.answer_ns,
        forwards=load.forwards,
    )


def load_from_pb(message: pb.ServiceLoad) -> ServiceLoad:
    """A service's load as received."""
    return ServiceLoad(
        running_sessions=message.running_sessions,
        waiting_sessions=message.waiting_sessions,
        answer_ns=message.answer_ns,
        forwards=message.forwards,
    )


def model_info_to_pb(info: ModelInfo) -> pb.ModelInfo:
    """Converts a model's description to its message."""
    return pb.ModelInfo(
        strategies=info.strategies,
        stop_token_ids=info.stop_token_ids,
        cost_curve=[pb.CostPoint(**field_values(point, _COST_POINT)) for point in info.cost_curve],
        **field_values(info, _PLAIN_MODEL_INFO),
    )


def model_info_from_pb(message: pb.ModelInfo) -> ModelInfo:
    """A model's description as received."""
    return ModelInfo(
        strategies=tuple(message.strategies),
        stop_token_ids=tuple(message.stop_token_ids),
        cost_curve=tuple(
            CostPoint(**field_values(point, _COST_POINT)) for point in message.cost_curve
        ),
        **field_values(message, _PLAIN_MODEL_INFO),
    )


def parameters_to_pb(parameters: GenerationParameters) -> generation_pb2.GenerationParameters:
    """Converts a client's request to its message."""
    sampling = sampling_to_pb(parameters.sampling)
    sampling.ClearField("seed")
    if parameters.seed is not None:
        sampling.seed = parameters.seed
    message = generation_pb2.GenerationParameters(
        sampling=sampling,
        max_tokens=parameters.max_tokens,
        min_tokens=parameters.min_tokens,
        stop=parameters.stop,
        stop_token_ids=parameters.stop_token_ids,
        ignore_eos=bool(parameters.ignore_eos),  # older versions of protobuf refuse numpy's bool
        allowed_token_ids=parameters.allowed_token_ids,
        bad_words=parameters.bad_words,
        speculation=speculation_to_pb(parameters.speculation),
        request_id=parameters.request_id,
        tenant=parameters.tenant,
        logprobs=parameters.logprobs,
        prompt_logprobs=parameters.prompt_logprobs,
        prediction=parameters.prediction,
        cache_salt=parameters.cache_salt,
    )
    if parameters.text is not None:
        message.text = parameters.text
    else:
        message.tokens.ids.extend(parameters.token_ids or ())
    return message


def parameters_from_pb(message: generation_pb2.GenerationParameters) -> GenerationParameters:
    """A client's request as received, not validated, except for what would take long to read.

    Raises InvalidInput for an unknown phrase scope, and for too many bans or matrix rows.
    """
    kind = message.WhichOneof("prompt")
    return GenerationParameters(
        text=message.text if kind == "text" else None,
        token_ids=tuple(message.tokens.ids) if kind == "tokens" else None,
        sampling=sampling_from_pb(message.sampling),
        seed=message.sampling.seed if message.sampling.HasField("seed") else None,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words=tuple(message.bad_words),
        speculation=speculation_from_pb(message.speculation),
        request_id=message.request_id,
        tenant=message.tenant,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=_prompt_logprobs(message),
        prediction=message.prediction,
        cache_salt=message.cache_salt,
    )


def _prompt_logprobs(message: generation_pb2.GenerationParameters) -> int | None:
    return message.prompt_logprobs if message.HasField("prompt_logprobs") else None
