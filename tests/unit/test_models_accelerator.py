"""Training as on a GPU, here on the CPU: the same updates, and texts sampled in batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: E402

from draftloop.config import bundled_model  # noqa: E402
from draftloop.runtime.loading import ModelOptions  # noqa: E402
from draftloop.runtime.model import LanguageModel  # noqa: E402
from models import accelerator, team, train  # noqa: E402
from models.accelerator import AcceleratorPhase, add_dropout  # noqa: E402
from models.architecture import build, configuration  # noqa: E402
from models.checkpoint import Checkpoint  # noqa: E402
from models.muon import Rates, new_momenta, orthogonalise, update, update_all  # noqa: E402
from models.packing import BLOCK, GROUP_BLOCKS, Windows  # noqa: E402
from models.report import Report  # noqa: E402
from models.sample import continued, continued_at_once  # noqa: E402
from models.schedule import Phase, Schedule  # noqa: E402
from models.setting import Setting  # noqa: E402
from models.tokenizer import END_OF_TEXT_ID  # noqa: E402
from models.train import next_token_loss  # noqa: E402

SMALL = configuration(hidden=32, layers=2, intermediate=48)
TEXT = (np.arange(BLOCK * GROUP_BLOCKS + 1) % 7).astype(np.int16)


def setting(file: Path, tokens: int = 1280) -> Setting:
    phase = Phase(until=1.0, layers=2, length=16, batch=4, micro=2)
    return Setting(
        file=file,
        schedule=Schedule(tokens=tokens, phases=(phase,)),
        rates=Rates(decay=0.1),
        windows=Windows(TEXT, seed=0),
        objective=next_token_loss,
        workers=1,
    )


def copied_parameters(model: LlamaForCausalLM) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_accelerator_takes_the_same_steps_as_a_cpu_process(tmp_path: Path) -> None:
    states = []
    for name, machine in (("cpu", team), ("gpu", accelerator)):
        chosen = setting(tmp_path / f"{name}.pt")
        initial = Checkpoint.begun(build(SMALL, seed=0))
        states.append(machine.run_phase(chosen, chosen.schedule.phases[0], initial))
    cpu_parameters, accelerator_parameters = (copied_parameters(state.model) for state in states)
    assert (states[0].tokens, states[0].step) == (states[1].tokens, states[1].step) == (1280, 20)
    for name, tensor in cpu_parameters.items():
        assert torch.allclose(tensor, accelerator_parameters[name], atol=2e-4), name
    assert (tmp_path / "gpu.jsonl").exists()


def test_run_in_this_process_leaves_torchs_settings(tmp_path: Path) -> None:
    """With AMX, torch would round the factors of all later float32 products to bfloat16."""
    chosen = setting(tmp_path / "run.pt")
    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    team.run_phase(chosen, chosen.schedule.phases[0], Checkpoint.begun(build(SMALL, seed=0)))
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == before


def test_resumed_run_continues_with_the_remaining_windows(tmp_path: Path) -> None:
    chosen = setting(tmp_path / "run.pt")
    state = Checkpoint.begun(build(SMALL, seed=0))
    state.tokens = 640
    phase = AcceleratorPhase(chosen, chosen.schedule.phases[0], state)
    first = next(phase.batches())
    assert [part.shape for part in first] == [(2, 17)] * 2
    assert torch.equal(torch.cat(first), Windows(TEXT, seed=0).batch(40, 4, 16))
    phase.run()
    assert (state.tokens, state.step) == (1280, 10)


def test_minutes_limit_a_run_instead_of_tokens(tmp_path: Path) -> None:
    chosen = replace(setting(tmp_path / "run.pt", tokens=64 * 10**9), minutes=0.005)
    initial = Checkpoint.begun(build(SMALL, seed=0))
    phase = AcceleratorPhase(chosen, chosen.schedule.phases[0], initial)
    assert phase.seen() == 0
    phase.run()
    assert phase.seen() >= chosen.schedule.tokens > initial.tokens >= 20 * 64
    saved = Checkpoint.load(chosen.file)
    assert saved.step == initial.step
    # the clock goes on where it stopped: the same command again finds the run finished
    again = replace(chosen, device="cuda")
    assert train.run(again, saved).step == initial.step


def test_resumed_run_has_its_untrained_minutes_left(tmp_path: Path) -> None:
    """Compilation used to count: a resumed run ended at once, without training."""
    chosen = replace(setting(tmp_path / "run.pt", tokens=64 * 10**9), minutes=10.0, device="cuda")
    stopped = Checkpoint.begun(build(SMALL, seed=0))
    stopped.seconds, stopped.compiling = 700.0, 300.0
    stopped.save(chosen.file)
    state = Checkpoint.load(chosen.file)
    assert chosen.seen(state.tokens, state.trained_s) == round(400 / 600 * chosen.schedule.tokens)
    began, report = state.trained_s, Report(chosen, state)
    report.step(1.0, chosen.schedule.phases[0])
    assert state.trained_s == pytest.approx(began) and state.seconds > 700.0
    report.step(1.0, chosen.schedule.phases[0])
    assert state.trained_s > began


def test_batched_updates_match_updates_one_by_one() -> None:
    models = [build(SMALL, seed=0) for _ in range(2)]
    momenta = [new_momenta(model) for model in models]
    for step in (1, 2):
        for model in models:
            model.zero_grad()
            next_token_loss(model, torch.arange(40)[None] * step % 90).backward()
        update_all(dict(models[0].named_parameters()), momenta[0], Rates(decay=0.5), 0.7, step)
        for name, parameter in models[1].named_parameters():
            assert parameter.grad is not None
            update(name, parameter, parameter.grad, momenta[1][name], Rates(decay=0.5), 0.7, step)
    for (name, one), two in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6), name


def test_batched_orthogonalisation_matches_one_by_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 8, 5), (3, 5, 8)):
        several = torch.randn(shape) * torch.tensor([0.01, 1.0, 30.0])[:, None, None]
        alone = torch.stack([orthogonalise(one) for one in several])
        assert torch.allclose(orthogonalise(several), alone, atol=1e-4)


def test_weight_decay_shrinks_matrices() -> None:
    model = build(SMALL, seed=0)
    before = copied_parameters(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    rates = Rates(matrix=0.1, decay=0.5)
    update_all(dict(model.named_parameters()), new_momenta(model), rates, 0.5, 1)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.allclose(model.state_dict()[name], before[name] * 0.975)
    name = "model.embed_tokens.weight"
    assert torch.equal(model.state_dict()[name], before[name])


def test_dropout_is_active_only_during_training() -> None:
    model = build(SMALL, seed=0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.arange(12)[None]
    plain = model.eval()(tokens).logits
    add_dropout(model, 0.5)
    assert torch.equal(model(tokens).logits, plain)
    model.train()
    assert not torch.allclose(model(tokens).logits, plain, atol=1e-3)


def test_batched_sampling_matches_the_served_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a temperature near zero: greedy decoding, row by row."""
    folder = bundled_model("drafter")
    for name, value in (("SAMPLING_TEMPERATURE", 1e-6), ("WRITTEN", 24)):
        monkeypatch.setattr(f"models.sample.{name}", value)
    model = LanguageModel(ModelOptions(folder=folder, max_sessions=3, context_length=64))
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = torch.tensor([[5, 6, 7, 8], [900, 901, 902, 903], [17, 4, 3, END_OF_TEXT_ID]])
    with torch.inference_mode():
        at_once = continued_at_once(network, rows)
        assert at_once.shape == (3, 28)
        assert torch.equal(at_once, continued(model, rows))
