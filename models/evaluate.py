"""Measures a published pair on held-out files: loss, and how often the draft model is right.

`python -m models.evaluate` prints the figures and writes them to `evaluation.json`, under the name
of the draft model that `--drafter` chooses. With `--windows` it is a quick look that writes
nothing. Acceptance has two definitions: the overlap of the distributions, sum min(p, q), which a
ratio test reaches with one child; and the share of positions at which both models choose the same
token with the same Gumbel noise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from models.corpus import Document, load
from models.layout import (
    DRAFTERS,
    EVALUATION,
    HELD_OUT_PROMPTS,
    MODELS_DIR,
    VERIFIER_DIR,
)
from models.revise import revised
from models.tokenizer import END_OF_TEXT_ID, encode

LENGTH = 1024
TEMPERATURES = (0.7, 1.0)
CONTINUED_FROM, CONTINUED_BY = 128, 128
SAMPLING_TEMPERATURE = 0.7
SECOND_VERSIONS, PASSAGE = 60, 350  # number of files, and tokens of each that occur twice

Figures = dict[str, float]


def gumbel(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise."""
    uniform = torch.rand(shape, generator=generator).clamp_min(1e-20)
    return -(-uniform.log()).log()


def agreement(target: Tensor, draft: Tensor, generator: torch.Generator) -> Figures:
    """Sums over positions of every acceptance measure; logits [positions, vocabulary]."""
    sums = {
        "positions": float(len(target)),
        "greedy": (target.argmax(-1) == draft.argmax(-1)).sum().item(),
    }
    noise = gumbel(target.shape, generator).to(target.device)
    for temperature in TEMPERATURES:
        target_log_probs, draft_log_probs = (
            (target / temperature).log_softmax(-1),
            (draft / temperature).log_softmax(-1),
        )
        sums[f"overlap@{temperature}"] = (
            torch.minimum(target_log_probs, draft_log_probs).exp().sum().item()
        )
        matches = (target_log_probs + noise).argmax(-1) == (draft_log_probs + noise).argmax(-1)
        sums[f"shared_noise@{temperature}"] = matches.sum().item()
    return sums


def add(total: Figures, part: Figures) -> None:
    """Adds `part` to `total` in place."""
    for name, value in part.items():
        total[name] = total.get(name, 0.0) + value


def shares(total: Figures) -> Figures:
    """The sums over positions as means."""
    return {
        name: round(value / total["positions"], 4) if name != "positions" else value
        for name, value in total.items()
    }


def windows(documents: list[Document], tokenizer: Tokenizer) -> Iterator[Tensor]:
    """The held-out stream in windows [1, LENGTH + 1] that share one token."""
    stream = encode(tokenizer, documents, seed=0).astype(np.int64)
    for start in range(0, len(stream) - LENGTH, LENGTH):
        yield torch.from_numpy(stream[start : start + LENGTH + 1])[None]


def evaluate_held_out(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, parts: Iterable[Tensor], every: int
) -> dict[str, Any]:
    """Losses over all windows, and acceptance over every `every`-th one."""
    generator = torch.Generator().manual_seed(0)
    losses, measured, count = np.zeros(2), Figures(), 0
    for number, tokens in enumerate(tqdm(parts, desc="held-out text", mininterval=10)):
        tokens = tokens.to(target.device)
        logits = [model(tokens[:, :-1]).logits[0] for model in (target, draft)]
        losses += [cross_entropy(part, tokens[0, 1:]).item() for part in logits]
        count += 1
        if number % every == 0:
            add(measured, agreement(logits[0], logits[1], generator))
    verifier_loss, drafter_loss = (losses / max(count, 1)).tolist()
    return {
        "tokens": count * LENGTH,
        "verifier_loss": round(verifier_loss, 4),
        "drafter_loss": round(drafter_loss, 4),
        "acceptance": shares(measured),
    }


def evaluate_continued(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, prompts: Tensor, batch: int = 25
) -> Figures:
    """Acceptance on what the target itself writes after `prompts` [N, CONTINUED_FROM]."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    total = Figures()
    for rows in tqdm(prompts.to(target.device).split(batch), desc="continued text"):
        written = target.generate(
            rows, attention_mask=torch.ones_like(rows), max_new_tokens=CONTINUED_BY,
            do_sample=True, temperature=SAMPLING_TEMPERATURE, top_k=0,
        )  # fmt: skip
        inputs = written[:, :-1]
        logits = [model(inputs).logits[:, CONTINUED_FROM - 1 :] for model in (target, draft)]
        # The first end of text is the target's own choice; what follows it is padding.
        ended = (inputs[:, CONTINUED_FROM - 1 :] == END_OF_TEXT_ID).cumsum(1) > 0
        add(total, agreement(logits[0][~ended], logits[1][~ended], generator))
    return shares(total)


def evaluate_second_versions(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, tokenizer: Tokenizer, files: list[Document]
) -> Figures:
    """Losses on beginnings of files, and on the same passages repeated with a name changed."""
    draw, sums, tokens = np.random.default_rng(0), np.zeros((2, 2)), np.zeros(2)
    for document in tqdm(files[:SECOND_VERSIONS], desc="second versions"):
        passage = tokenizer.decode(tokenizer.encode(document.text).ids[:PASSAGE])
        first = [END_OF_TEXT_ID, *tokenizer.encode(f"{passage}\n\n").ids]
        again = tokenizer.encode(revised(passage, draw)).ids
        ids = torch.tensor([first + again], device=target.device)
        end = len(first) - 1
        for row, model in enumerate((target, draft)):
            losses = cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:], reduction="none")
            sums[row] += losses[:end].sum().item(), losses[end:].sum().item()
        tokens += end, ids.shape[1] - 1 - end
    means = (sums / tokens).round(4).tolist()
    return {
        "tokens": int(tokens[1]),
        "verifier_loss_first": means[0][0],
        "verifier_loss_second": means[0][1],
        "drafter_loss_first": means[1][0],
        "drafter_loss_second": means[1][1],
    }


def prompt_ends(tokenizer: Tokenizer) -> Tensor:
    """The last CONTINUED_FROM tokens of every committed prompt that has as many.

    Trailing line ends are removed, since a line end is one token with the indentation after it.
    """
    lines = HELD_OUT_PROMPTS.open(encoding="utf-8")
    texts = [json.loads(line)["prompt"].rstrip() for line in lines]
    ids = [tokenizer.encode(text).ids[-CONTINUED_FROM:] for text in texts]
    return torch.tensor([row for row in ids if len(row) == CONTINUED_FROM])


def main() -> None:
    """Evaluates a published pair in float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", choices=DRAFTERS, default=DRAFTERS[0])
    parser.add_argument("--every", type=int, default=4, help="acceptance on every n-th window")
    parser.add_argument(
        "--windows", type=int, default=None, help="only so many of held-out text; writes nothing"
    )
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    # The pair's own tokenizer: the one of models.tokenizer may belong to a pair in preparation.
    tokenizer = Tokenizer.from_file(str(VERIFIER_DIR / "tokenizer.json"))
    _, held_out = load()
    target, draft = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(options.device)
        for folder in (VERIFIER_DIR, MODELS_DIR / options.drafter)
    )
    parts = list(windows(held_out, tokenizer))[: options.windows]
    size = sum(len(document.text.encode()) for document in held_out)
    count = sum(len(tokenizer.encode(document.text).ids) for document in held_out)
    result = {
        "bytes_per_token": round(size / count, 3),
        "held_out_text": evaluate_held_out(target, draft, parts, options.every),
        "second_versions": evaluate_second_versions(target, draft, tokenizer, held_out),
        "continued_text": evaluate_continued(target, draft, prompt_ends(tokenizer)),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    if options.windows is None:
        known = json.loads(EVALUATION.read_text())
        known[options.drafter] = result
        EVALUATION.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
