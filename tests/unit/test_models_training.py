"""Training: schedule, packing, Muon, growth, sharding, checkpoints."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.multiprocessing.spawn import spawn  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from draftloop.config import bundled_model  # noqa: E402
from draftloop.runtime.loading import ModelOptions  # noqa: E402
from draftloop.runtime.model import LanguageModel  # noqa: E402
from models.architecture import (  # noqa: E402
    CONFIGURATIONS,
    LARGE_DRAFTER_LAYERS,
    build,
    configuration,
    grow,
    growth_plan,
    silence,
    thinned,
)
from models.checkpoint import BUNDLED, Checkpoint, state_of_run  # noqa: E402
from models.evaluate import agreement, shares  # noqa: E402
from models.layout import DRAFTER_DIR  # noqa: E402
from models.muon import Rates, new_momenta, orthogonalise, share_out, update  # noqa: E402
from models.packing import BLOCK, GROUP_BLOCKS, Windows  # noqa: E402
from models.sample import (  # noqa: E402
    EVERY,
    PROMPT,
    REVISED_PROMPT,
    ROWS,
    WRITTEN,
    continued,
    prompts,
)
from models.schedule import Phase, Schedule  # noqa: E402
from models.setting import Setting  # noqa: E402
from models.team import end_with_parent, spans  # noqa: E402
from models.tokenizer import END_OF_TEXT_ID  # noqa: E402
from models.train import deepen, next_token_loss, run  # noqa: E402
from tests.support.waiting import until  # noqa: E402

GROUP = BLOCK * GROUP_BLOCKS
SMALL = configuration(hidden=32, layers=2, intermediate=48)


def new_schedule(tokens: int = 1000) -> Schedule:
    first = Phase(until=0.5, layers=2, length=10, batch=2, micro=1)
    second = Phase(until=1.0, layers=3, length=20, batch=2, micro=2)
    return Schedule(tokens=tokens, phases=(first, second), warmup=0.1, decay=0.4)


def test_learning_rate_rises_stays_and_falls_to_zero() -> None:
    plan = new_schedule()
    assert 0 < plan.factor(0) < plan.factor(50) < 1
    assert plan.factor(300) == plan.factor(590) == 1
    assert plan.factor(800) == pytest.approx(0.5)
    assert plan.factor(1000) == 0


def test_constant_rate_does_not_depend_on_the_token_budget() -> None:
    """This allows `--tokens` to change when a run is resumed."""
    assert new_schedule(1000).factor(500) == new_schedule(2000).factor(500) == 1


def test_phases_run_in_sequence() -> None:
    plan = new_schedule()
    assert [plan.phase(tokens) for tokens in (0, 499)] == [plan.phases[0]] * 2
    assert plan.phase(500) is plan.phases[1]
    assert plan.phase(1000) is None
    assert plan.phases[0].step_tokens == 20 and plan.phases[0].micros == 2


@pytest.mark.parametrize("length", [512, 2048])
def test_windows_cover_the_stream_once_per_pass_in_new_order(length: int) -> None:
    windows = Windows(np.zeros(2 * GROUP + 1, dtype=np.int16), seed=1)
    count = 2 * GROUP // length
    first, second = (
        [windows.start(number, length) for number in range(begin, begin + count)]
        for begin in (0, count)
    )
    assert sorted(first) == sorted(second) == [number * length for number in range(count)]
    assert first != second


def test_window_group_covers_the_whole_stream() -> None:
    """Groups of neighbouring files made the loss fall within a group and jump at the next."""
    windows = Windows(np.zeros(8 * GROUP + 1, dtype=np.int16), seed=1)
    eighths = {windows.start(number, 512) // GROUP for number in range(64)}
    assert eighths == set(range(8))


def test_batch_holds_inputs_and_targets_and_is_reproducible() -> None:
    stream = (np.arange(GROUP + 1) % 1000).astype(np.int16)
    batch = Windows(stream, seed=3).batch(5, 4, 64)
    assert batch.shape == (4, 65)
    assert ((batch[:, 1:] - batch[:, :-1]) % 1000 == 1).all()
    assert torch.equal(batch, Windows(stream, seed=3).batch(5, 4, 64))


def test_too_short_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        Windows(np.zeros(10, dtype=np.int16), seed=0).batch(0, 1, 64)


@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (48, 16)])
def test_muon_directions_are_nearly_orthogonal(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert values.min() > 0.3 and values.max() < 1.4


def test_orthogonalising_keeps_the_singular_vectors() -> None:
    torch.manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(24, 24))
    right, _ = torch.linalg.qr(torch.randn(24, 24))
    result = orthogonalise(left @ torch.diag(torch.linspace(0.5, 1.5, 24)) @ right)
    diagonal = left.T @ result @ right.T
    assert (diagonal - torch.diag(diagonal.diagonal())).abs().max() < 1e-4


def test_updates_reduce_the_loss() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    model = nn.ModuleDict({"layers": nn.ModuleList([layer])})
    holder = nn.ModuleDict({"model": model})
    momenta = new_momenta(holder)
    assert set(momenta["model.layers.0.weight"]) == {"first"}
    assert set(momenta["model.layers.0.bias"]) == {"first", "second"}
    inputs, losses = torch.randn(32, 8), []
    for step in range(1, 30):
        loss = (layer(inputs) - inputs).square().mean()
        losses.append(loss.item())
        holder.zero_grad()
        loss.backward()
        for name, parameter in holder.named_parameters():
            assert parameter.grad is not None
            update(name, parameter, parameter.grad, momenta[name], Rates(), 1.0, step)
    assert losses[-1] < 0.5 * losses[0]


def test_every_parameter_has_one_owner_and_one_span() -> None:
    model = build(SMALL, seed=0)
    owned = share_out(model, 3)
    names = [name for name, _ in model.named_parameters()]
    assert sorted(sum(owned, [])) == sorted(names)
    places = spans(dict(model.named_parameters()))
    covered = sorted(index for place in places.values() for index in (place.start, place.stop))
    assert covered[0] == 0 and covered[1:-1:2] == covered[2:-1:2]


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_growth_keeps_the_function(layers: int) -> None:
    model = build(SMALL, seed=0)
    for layer in model.model.layers:
        nn.init.normal_(layer.mlp.down_proj.weight, std=0.1)
    tokens = torch.arange(24)[None]
    grown = grow(model, layers)
    assert grown.config.num_hidden_layers == len(grown.model.layers) == layers
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, grown(tokens).logits)


def test_growth_is_at_most_a_doubling() -> None:
    assert growth_plan(2, 3) == [(0, False), (1, False), (1, True)]
    with pytest.raises(ValueError, match="from 2 to 5"):
        grow(build(SMALL, seed=0), 5)


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    model = build(SMALL, seed=1)
    state = Checkpoint(model, new_momenta(model), tokens=7, step=3, seconds=1.5)
    state.save(tmp_path / "run.pt")
    again = Checkpoint.load(tmp_path / "run.pt")
    assert (again.tokens, again.step, again.seconds) == (7, 3, 1.5)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    assert again.model.lm_head.weight is again.model.model.embed_tokens.weight
    assert deepen(again, 3).model.config.num_hidden_layers == 3
    assert not list(tmp_path.glob("*.partial"))


def test_single_process_run_trains_and_ends(tmp_path: Path) -> None:
    phases = (
        Phase(until=0.5, layers=2, length=16, batch=4, micro=2),
        Phase(until=1.0, layers=3, length=32, batch=2, micro=1),
    )
    setting = Setting(
        file=tmp_path / "run.pt",
        schedule=Schedule(tokens=2560, phases=phases),
        rates=Rates(),
        windows=Windows((np.arange(GROUP + 1) % 7).astype(np.int16), seed=0),
        objective=next_token_loss,
        workers=1,
    )
    model = build(SMALL, seed=0)
    state = run(setting, Checkpoint(model, new_momenta(model), tokens=0, step=0, seconds=0.0))
    assert state.tokens >= 2560 and state.model.config.num_hidden_layers == 3
    tokens = torch.arange(33)[None] % 7
    assert next_token_loss(state.model, tokens).item() < 4.0  # untrained: log(4096) = 8.3


def _record_pid_and_sleep(rank: int, file: Path) -> None:
    end_with_parent()
    file.write_text(str(os.getpid()))
    time.sleep(600)


def test_workers_die_with_their_parent_process(tmp_path: Path) -> None:
    """Workers of a killed run used to overwrite the checkpoints of the run that resumed it."""
    file = tmp_path / "pid"
    parent = multiprocessing.get_context("spawn").Process(
        target=spawn, args=(_record_pid_and_sleep, (file,)), kwargs={"nprocs": 1}
    )
    parent.start()
    try:
        until(lambda: file.exists() and bool(file.read_text()), seconds=120)
        worker = psutil.Process(int(file.read_text()))
    finally:
        parent.kill()
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_agreement_of_a_model_with_itself_is_one() -> None:
    logits = torch.randn(6, 13)
    figures = shares(agreement(logits, logits, torch.Generator().manual_seed(0)))
    assert figures.pop("positions") == 6
    assert all(value == pytest.approx(1, abs=1e-3) for value in figures.values())


def test_some_sampling_prompts_begin_a_second_version() -> None:
    # One of EVERY batches holds records in which the second version of a passage has begun.
    text = np.arange(1, 4000, dtype=np.int16)
    records = np.ones(20 * 512, dtype=np.int16)
    records[::1024] = END_OF_TEXT_ID  # every other place is inside a longer record
    shapes = [prompts(text, records, batch).shape for batch in range(EVERY)]
    assert shapes == [(ROWS, REVISED_PROMPT), *[(ROWS, PROMPT)] * (EVERY - 1)]
    assert (prompts(text, records, 0)[:, 0] == END_OF_TEXT_ID).all()
    assert torch.equal(prompts(text, None, 3), prompts(text, records, 3))


def test_sampled_text_matches_decoding_row_by_row() -> None:
    """At a temperature near zero: greedy decoding, row by row."""
    folder = bundled_model("drafter")
    model = LanguageModel(ModelOptions(folder=folder, max_sessions=2, context_length=512))
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = torch.tensor([[5, 6, 7, 8], [900, 901, 902, 903]])
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.sample.SAMPLING_TEMPERATURE", 1e-6)
        written = continued(model, rows)
        expected = network.generate(
            rows, attention_mask=torch.ones_like(rows), max_new_tokens=WRITTEN, do_sample=False
        )
    assert written.shape == (2, 4 + WRITTEN) and model.cache.free_slots == 2
    for row, expected_row in zip(written.tolist(), expected.tolist(), strict=True):
        stop = row.index(END_OF_TEXT_ID) if END_OF_TEXT_ID in row else len(row)
        assert row[:stop] == expected_row[:stop]
        assert set(row[stop:]) <= {END_OF_TEXT_ID}


def test_thinned_model_has_only_the_kept_layers() -> None:
    whole = build(configuration(hidden=32, layers=4, intermediate=48), seed=1)
    torch.manual_seed(2)
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.arange(12)[None]
    thin = thinned(whole, (0, 2))
    for layer, number in enumerate((0, 2)):
        kept, original = (
            thin.model.layers[layer].state_dict(),
            whole.model.layers[number].state_dict(),
        )
        assert all(torch.equal(kept[name], original[name]) for name in original)
    for number in (1, 3):
        silence(whole.model.layers[number])
    assert torch.allclose(thin(tokens).logits, whole(tokens).logits, atol=1e-5)


def test_bundled_models_have_the_shapes_of_the_training_scripts() -> None:
    for name, configured in CONFIGURATIONS.items():
        expected, shipped = configured(), state_of_run(BUNDLED, bundled_model(name)).model.config
        for size in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"):
            assert getattr(shipped, size) == getattr(expected, size), (name, size)
    assert CONFIGURATIONS["drafter-large"]().num_hidden_layers == len(LARGE_DRAFTER_LAYERS)


def test_run_from_shipped_weights_starts_its_own_counts() -> None:
    state = state_of_run(BUNDLED, DRAFTER_DIR)
    assert (state.tokens, state.step) == (0, 0)
    assert state.model.dtype == torch.float32
    assert state.momenta.keys() == dict(state.model.named_parameters()).keys()
