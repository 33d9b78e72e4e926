"""Trains the verifier model, or a first draft model, by cross-entropy.

`python -m models.train verifier --tokens 5000000` starts a run, and after a kill resumes it.
`--tokens` may be changed on resuming as long as the learning rate has not begun to fall. `--run
second --start-from verifier` starts a second run, with its own learning rate schedule, from the
weights and momenta that the run `verifier` left: hours of training in several sittings.
`--start-from bundled` starts from the shipped weights.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from models import accelerator, team
from models.architecture import CONFIGURATIONS, build, grow, verifier_configuration
from models.checkpoint import BUNDLED, Checkpoint, state_of_run
from models.layout import MODELS_DIR, checkpoint_file
from models.muon import Rates, new_momenta
from models.schedule import Phase, Schedule, on_accelerator
from models.setting import Objective, Setting
from models.streams import add_share_options, training_text
from models.tokenizer import require_same

VERIFIER_PHASES = (
    Phase(until=0.86, layers=3, length=512, batch=8, micro=2),
    Phase(until=0.93, layers=6, length=512, batch=12, micro=2),
    Phase(until=0.975, layers=6, length=1024, batch=6, micro=1),
    Phase(until=1.00, layers=6, length=2048, batch=4, micro=1),
)
# For runs that start at full depth. Batches are larger, since a Newton-Schulz step costs as much as
# 2500 tokens.
FULL_DEPTH_PHASES = (
    Phase(until=0.90, layers=6, length=512, batch=16, micro=2),
    Phase(until=0.96, layers=6, length=1024, batch=8, micro=1),
    Phase(until=1.00, layers=6, length=2048, batch=4, micro=1),
)
# For repeated text: a second version teaches nothing unless its window also has the first.
REVISED_PHASES = (
    Phase(until=0.92, layers=6, length=1024, batch=8, micro=1),
    Phase(until=1.00, layers=6, length=2048, batch=4, micro=1),
)
DRAFTER_PHASES = (
    Phase(until=0.80, layers=2, length=512, batch=16, micro=4),
    Phase(until=1.00, layers=2, length=2048, batch=4, micro=1),
)


def next_token_loss(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Mean cross-entropy in nats of tokens [B, L + 1] under a causal model."""
    hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).flatten(0, 1).float()
    return cross_entropy(logits, tokens[:, 1:].flatten())


def starting_state(file: Path, config: LlamaConfig, seed: int) -> Checkpoint:
    """The state in `file`, or else a fresh one."""
    if file.exists():
        return Checkpoint.load(file)
    return Checkpoint.begun(build(config, seed))


def deepen(state: Checkpoint, layers: int) -> Checkpoint:
    """The state with a model of `layers` layers; momenta of grown layers start at zero."""
    if state.model.config.num_hidden_layers == layers:
        return state
    model = grow(state.model, layers)
    momenta = new_momenta(model)
    for name, slots in momenta.items():
        if ".layers." not in name:
            slots.update(state.momenta[name])
    return replace(state, model=model, momenta=momenta)


def run(setting: Setting, state: Checkpoint) -> Checkpoint:
    """Runs all remaining phases."""
    schedule = setting.schedule
    while phase := schedule.phase(setting.seen(state.tokens, state.trained_s)):
        machine = team if setting.device == "cpu" else accelerator
        state = machine.run_phase(setting, phase, deepen(state, phase.layers))
    return state


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Adds options for the machine, the name and start of the run, and learning rates."""
    parser.add_argument("--matrix-rate", type=float, default=0.02)
    parser.add_argument("--other-rate", type=float, default=0.003)
    parser.add_argument("--decay", type=float, default=0.0, help="of matrices, times the rate")
    parser.add_argument("--dropout", type=float, default=0.0, help="0 to 1, on a GPU")
    parser.add_argument(
        "--workers", type=int, default=2, help="processes on a CPU, one thread each"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--minutes", type=float, default=None, help="of a run on a GPU, instead of --tokens"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", default=None, help="name of the checkpoint, default the model's")
    parser.add_argument("--start-from", default=None, help="name of a finished run to go on from")


def rates_from(options: argparse.Namespace) -> Rates:
    """Learning rates from the options; Muon iterates in the type in which the model computes."""
    dtype = getattr(torch, options.dtype)
    return Rates(
        matrix=options.matrix_rate, other=options.other_rate, decay=options.decay, dtype=dtype
    )


def setting_from(
    options: argparse.Namespace,
    schedule: Schedule,
    rates: Rates,
    objective: Objective,
    name: str,
) -> Setting:
    """The setting that the options describe. Raises SystemExit for GPU options on a CPU."""
    for flag, is_given in (("minutes", options.minutes is not None), ("dropout", options.dropout)):
        if is_given and options.device == "cpu":
            raise SystemExit(f"--{flag}: must go with a GPU (--device cuda), got --device cpu")
    return Setting(
        file=checkpoint_file(options.run or name),
        schedule=schedule,
        rates=rates,
        windows=training_text(options),
        objective=objective,
        workers=options.workers,
        device=options.device,
        dtype=getattr(torch, options.dtype),
        compiled=options.compile,
        dropout=options.dropout,
        minutes=options.minutes,
    )


def phases_of(options: argparse.Namespace) -> tuple[Phase, ...]:
    """The phases for the chosen model, start and text."""
    if options.model == "drafter":
        return DRAFTER_PHASES
    if options.device != "cpu":
        return on_accelerator(verifier_configuration().num_hidden_layers)
    if options.revised_share:
        return REVISED_PHASES
    return FULL_DEPTH_PHASES if options.start_from else VERIFIER_PHASES


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("verifier", "drafter"))
    parser.add_argument("--tokens", type=int, default=5_000_000)
    add_share_options(parser)
    add_machine_options(parser)
    options = parser.parse_args()
    phases = phases_of(options)
    config = CONFIGURATIONS[options.model]()
    config.num_hidden_layers = phases[0].layers
    schedule = Schedule(tokens=options.tokens, phases=phases)
    rates = rates_from(options)
    setting = setting_from(options, schedule, rates, next_token_loss, options.model)
    if options.start_from and not setting.file.exists():
        if options.start_from == BUNDLED:
            require_same(MODELS_DIR / options.model)
        run(setting, state_of_run(options.start_from, MODELS_DIR / options.model))
    else:
        run(setting, starting_state(setting.file, config, options.seed))


if __name__ == "__main__":
    main()
