"""Distils a draft model from the finished verifier model.

`python -m models.distill --tokens 3000000` starts from the draft model that was trained by
cross-entropy, if there is one. With `--model drafter-large`, it starts from every second layer of
the verifier model. Both resume like `models.train`; without `--run`, the runs are called
`distilled` and `distilled-large`. `--sampled-share 0.5` takes half of the text from what the
verifier model wrote for `models.sample`, `--revised-share 0.1` a tenth from `models.revise`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from models import attention
from models.architecture import CONFIGURATIONS, LARGE_DRAFTER_LAYERS, build, thinned
from models.checkpoint import BUNDLED, Checkpoint, state_of_run
from models.layout import (
    DRAFTER_DIR,
    DRAFTERS,
    LARGE_DRAFTER_DIR,
    MODELS_DIR,
    VERIFIER_DIR,
    checkpoint_file,
)
from models.schedule import Phase, Schedule, on_accelerator
from models.setting import Setting
from models.streams import add_share_options
from models.tokenizer import require_same
from models.train import add_machine_options, rates_from, run, setting_from

# Default names of runs.
RUNS_BY_MODEL = {DRAFTER_DIR.name: "distilled", LARGE_DRAFTER_DIR.name: "distilled-large"}


def phases(layers: int, device: str) -> tuple[Phase, ...]:
    """Phases with windows as long as the texts that are served.

    A draft model trained on 512 tokens agreed with the target at 0.62 of the positions below that
    length, and at 0.40 of those above.
    """
    if device != "cpu":
        return on_accelerator(layers)
    return (
        Phase(until=0.85, layers=layers, length=1024, batch=8, micro=1),
        Phase(until=1.00, layers=layers, length=2048, batch=4, micro=1),
    )


@dataclass(frozen=True, slots=True)
class Distillation:
    """Divergence from the teacher at several temperatures, plus a little cross-entropy.

    The low temperature is included because acceptance matters where text is sampled, at 0.7.
    `overlap_share` of the divergence is the probability that a ratio test rejects a draft: a model
    too small to follow its teacher everywhere should optimize that (DistillSpec, arXiv 2310.08461,
    section 4: the total variation distance).
    """

    teacher: LlamaForCausalLM
    temperatures: Sequence[float] = (1.0, 0.7)
    truth_share: float = 0.1
    overlap_share: float = 0.0

    def __call__(self, model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
        """Loss in nats per token for tokens [B, L + 1]."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
        with torch.no_grad():
            teacher_logits = (
                self.teacher(input_ids=inputs, use_cache=False).logits.flatten(0, 1).float()
            )
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        draft_logits = model.lm_head(hidden).flatten(0, 1).float()
        divergence = sum(
            (
                self.divergence(teacher_logits, draft_logits, temperature)
                for temperature in self.temperatures
            ),
            start=draft_logits.new_zeros(()),
        ) / len(self.temperatures)
        truth = cross_entropy(draft_logits, targets)
        return (1 - self.truth_share) * divergence + self.truth_share * truth

    def divergence(
        self, teacher_logits: Tensor, draft_logits: Tensor, temperature: float
    ) -> Tensor:
        """Divergence of the draft model from the teacher; logits [N, vocabulary]."""
        loss = tempered_divergence(teacher_logits, draft_logits, temperature)
        if not self.overlap_share:
            return loss
        rejected = tempered_rejection(teacher_logits, draft_logits, temperature)
        return (1 - self.overlap_share) * loss + self.overlap_share * rejected


def tempered_divergence(teacher_logits: Tensor, draft_logits: Tensor, temperature: float) -> Tensor:
    """KL(teacher || draft) per token, both at `temperature`; logits [N, vocabulary]."""
    teacher, draft = _tempered(teacher_logits, temperature), _tempered(draft_logits, temperature)
    return kl_div(draft, teacher, reduction="batchmean", log_target=True)


def tempered_rejection(teacher_logits: Tensor, draft_logits: Tensor, temperature: float) -> Tensor:
    """1 - the mean overlap, sum of min(p, q), at `temperature`; logits [N, vocabulary]."""
    teacher, draft = _tempered(teacher_logits, temperature), _tempered(draft_logits, temperature)
    return (teacher.exp() - draft.exp()).clamp(min=0).sum(-1).mean()


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    # Both measures use this same expression, so that `--compile` computes it once.
    return (logits / temperature).log_softmax(-1)


def teacher_from(folder: str | os.PathLike[str], device: str) -> LlamaForCausalLM:
    """The frozen verifier model in float32."""
    teacher: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if device == "cpu":
        teacher.set_attn_implementation(attention.NAME)
    return teacher.eval().requires_grad_(False).to(device)


def first_state(
    setting: Setting, options: argparse.Namespace, teacher: LlamaForCausalLM
) -> Checkpoint:
    """The run's own state, else the draft model that another run left, else a new one.

    Momenta start at zero, because the objective or the teacher differs. Raises FileNotFoundError if
    the run to start from left nothing, and ValueError if a state is of another model than the
    options name.
    """
    config = CONFIGURATIONS[options.model]()
    if setting.file.exists():
        state, name = Checkpoint.load(setting.file), setting.file.stem
    elif options.start_from or checkpoint_file(options.model).exists():
        name = options.start_from or options.model
        state = Checkpoint.begun(state_of_run(name, MODELS_DIR / options.model).model)
    elif options.model == LARGE_DRAFTER_DIR.name:
        return Checkpoint.begun(thinned(teacher, LARGE_DRAFTER_LAYERS))
    else:
        return Checkpoint.begun(build(config, options.seed))
    hidden = state.model.config.hidden_size
    if hidden != config.hidden_size:
        raise ValueError(
            f"the run {name!r} has a hidden size of {hidden}, "
            f"{options.model} has one of {config.hidden_size}"
        )
    return state


def main() -> None:
    """Parses the command line and distils."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=DRAFTERS, default=DRAFTERS[0])
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument(
        "--overlap-share", type=float, default=0.0, help="0 to 1, of the divergence"
    )
    add_share_options(parser)
    add_machine_options(parser)
    options = parser.parse_args()
    layers = CONFIGURATIONS[options.model]().num_hidden_layers
    schedule = Schedule(tokens=options.tokens, phases=phases(layers, options.device), decay=0.5)
    rates = rates_from(options)
    require_same(VERIFIER_DIR)
    if options.start_from == BUNDLED:
        require_same(MODELS_DIR / options.model)
    teacher = teacher_from(VERIFIER_DIR, options.device)
    objective = Distillation(teacher, overlap_share=options.overlap_share)
    setting = setting_from(options, schedule, rates, objective, RUNS_BY_MODEL[options.model])
    run(setting, first_state(setting, options, teacher))


if __name__ == "__main__":
    main()
