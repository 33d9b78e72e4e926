"""Log-probabilities of the target model: of emitted tokens, and of a prompt's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftloop.logprobs import PromptLogprobs, TokenLogprobs
from draftloop.runtime.forward import Forward, Task
from verifier_service.session import VerifierSession

# float32 logits of one forward: a quarter of a gigabyte, including what is computed from them.
MAX_LOGITS = 1 << 24


def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], count: int
) -> tuple[TokenLogprobs, ...]:
    """Log-probability of the token after every row, and the `count` likeliest tokens there.

    logits: [rows, vocabulary]; token_ids: [rows].
    """
    logprobs = logits.float().log_softmax(dim=-1)
    best = logprobs.topk(min(count, logprobs.shape[-1]), dim=-1)
    return tuple(
        TokenLogprobs(token, float(row[token]), tuple(zip(ids, values, strict=True)))
        for token, row, ids, values in zip(
            token_ids, logprobs, best.indices.tolist(), best.values.tolist(), strict=True
        )
    )


def prompt_logprobs(session: VerifierSession, *, chunk_tokens: int) -> Task[PromptLogprobs]:
    """Prefills the prompt except its last token; returns each token's log-probability.

    In chunks, as `prefill`, but without shared rows: rows that were copied have no logits.
    """
    slot, prompt = session.slot, session.request.token_ids
    assert slot.length == 0, "the session shares no rows"
    count = session.request.prompt_logprobs or 0
    found = PromptLogprobs(count=min(count, session.model.vocabulary_size))
    most = max(1, min(chunk_tokens, MAX_LOGITS // session.model.vocabulary_size))
    while (left := len(prompt) - 1 - slot.length) > 0:
        start = slot.length
        size = min(most, session.model.step_size.prompt_tokens, left)
        logits = yield Forward(session.model, slot, prompt[start : start + size], left=left)
        _observe(found, logits, prompt[start + 1 : start + 1 + size])
    return found


def _observe(found: PromptLogprobs, logits: Tensor, followers: Sequence[int]) -> None:
    """Adds the log-probabilities of `followers`, the prompt's tokens after each row."""
    logprobs = logits.float().log_softmax(dim=-1)
    rows = torch.arange(len(followers), device=logits.device)
    chosen = logprobs[rows, torch.tensor(followers, device=logits.device)]
    found.logprobs.extend(chosen.tolist())
    found.ranks.extend((1 + (logprobs > chosen[:, None]).sum(dim=-1)).tolist())
    best = logprobs.topk(found.count, dim=-1)
    found.top_token_ids.extend(best.indices.flatten().tolist())
    found.top_logprobs.extend(best.values.flatten().tolist())
