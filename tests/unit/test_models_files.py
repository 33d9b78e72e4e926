"""Files that the training scripts leave for one another: complete, matching, or refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tokenizers import Tokenizer  # noqa: E402
from transformers import LlamaForCausalLM  # noqa: E402

from draftloop.config import bundled_model  # noqa: E402
from models import card, evaluate, export, run_log, sample, token_file, train  # noqa: E402
from models.architecture import build, configuration  # noqa: E402
from models.checkpoint import Checkpoint  # noqa: E402
from models.corpus import Document  # noqa: E402
from models.tokenizer import require_same, trained  # noqa: E402
from models.tokenizer import train as train_tokenizer  # noqa: E402

BUNDLED_TOKENIZER = bundled_model("verifier") / "tokenizer.json"


def save_tokenizer_file(tokenizer: Tokenizer, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Saves the tokenizer as `models.tokenizer` does."""
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    patch.setattr("models.tokenizer.TOKENIZER_FILE", file)
    return file


def test_interrupted_write_keeps_the_previous_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.npy"
    with pytest.raises(FileNotFoundError, match=r"train\.npy is not there: run python -m models.x"):
        token_file.read(file, by="models.x")
    before = np.arange(9, dtype=np.int16)
    token_file.write(file, before)

    def killed(stream: object, tokens: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        token_file.write(file, before[:4])
    assert np.array_equal(token_file.read(file, by="models.x"), before)


def test_failed_checkpoint_write_keeps_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk used to be reported as a position error in torch, and left half a state."""
    file = tmp_path / "run.pt"
    state = Checkpoint.begun(build(configuration(hidden=32, layers=2, intermediate=48), seed=0))
    state.save(file)
    state.tokens = 99

    def disk_full(state: object, stream: BinaryIO) -> None:
        stream.write(b"half")
        raise RuntimeError("unexpected pos 8320 vs 8214")

    monkeypatch.setattr(torch, "save", disk_full)
    with pytest.raises(OSError, match=r"run\.pt cannot be written, so it stays as it was: unexp"):
        state.save(file)
    assert list(tmp_path.iterdir()) == [file] and Checkpoint.load(file).tokens == 0


def test_truncated_log_continues_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torn line used to make it unreadable, and repeated steps used to be in it twice."""
    log = tmp_path / "run.jsonl"
    for tokens in (10, 20, 30):
        run_log.add(log, {"tokens": tokens, "seconds": 60.0 * tokens})
    with log.open("a") as stream:
        stream.write('{"tokens": 4')
    monkeypatch.setattr("models.card.CACHE_DIR", tmp_path)
    assert card.known_runs()["run"] == {"tokens": 30, "minutes": 30}
    run_log.truncate_after(log, 20)
    run_log.add(log, {"tokens": 25, "seconds": 1500.0})
    assert [record["tokens"] for record in run_log.read(log)] == [10, 20, 25]


def test_tokens_of_another_tokenizer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft model used to be distilled on token ids that meant other text to its teacher."""
    monkeypatch.setattr("models.tokenizer.TOKENIZER_FILE", tmp_path / "tokenizer.json")
    with pytest.raises(FileNotFoundError, match="run python -m models.tokenizer first"):
        trained()
    save_tokenizer_file(Tokenizer.from_file(str(BUNDLED_TOKENIZER)), tmp_path, monkeypatch)
    require_same(bundled_model("verifier"))
    save_tokenizer_file(train_tokenizer(["def other(): pass\n"]), tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="has another tokenizer than"):
        require_same(bundled_model("verifier"))
    monkeypatch.setattr(sys, "argv", ["export", "--drafter", "run"])
    with pytest.raises(ValueError, match="verifier has another tokenizer than"):
        export.main()


def test_published_weights_are_split_and_replace_those_in_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tokenizer_file(Tokenizer.from_file(str(BUNDLED_TOKENIZER)), tmp_path, monkeypatch)
    folder, whole = tmp_path / "model", {"model.safetensors"}
    for size, numbers in ((15 << 20, 0), (1 << 20, 2), (15 << 20, 0)):
        monkeypatch.setattr(export, "MAX_FILE_BYTES", size)
        model = LlamaForCausalLM.from_pretrained(bundled_model("drafter"), dtype=torch.bfloat16)
        export.publish(model, folder)
        files = {file.name for file in folder.glob("model*")}
        split = {f"model-{at:05}-of-{numbers:05}.safetensors" for at in range(1, numbers + 1)}
        assert files == (split | {"model.safetensors.index.json"} if numbers else whole)
        read = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
        assert all(torch.equal(read[name], weight) for name, weight in model.state_dict().items())


def test_text_sampled_from_another_verifier_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an export, the old model's text used to be taken instead of sampling anew."""
    monkeypatch.setattr("models.sample.SAMPLED_DIR", tmp_path)
    file = sample.file_of(0)
    file.parent.mkdir()
    token_file.write(file, np.ones((2, 3), dtype=np.int16))
    assert len(sample.sampled_stream()) == 6
    monkeypatch.setattr("models.sample.VERIFIER_DIR", bundled_model("drafter"))
    assert not sample.file_of(0).exists()
    with pytest.raises(FileNotFoundError, match="drafter: this model has written nothing yet"):
        sample.sampled_stream()


@pytest.mark.parametrize("flags", [("--dropout", "0.1"), ("--minutes", "1")])
def test_gpu_options_are_refused_on_a_cpu(
    flags: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dropout option used to be accepted without effect."""
    monkeypatch.setattr(sys, "argv", ["train", "drafter", *flags])
    with pytest.raises(SystemExit, match=f"{flags[0]}: must go with a GPU"):
        train.main()


def test_evaluation_uses_the_pairs_tokenizer_and_keeps_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluation used to take the tokenizer in training, and measured nothing without one."""
    record = tmp_path / "evaluation.json"
    record.write_text("{}")
    text = BUNDLED_TOKENIZER.read_text(encoding="utf-8")[:9000]
    for name, value in {
        "EVALUATION": record,
        "load": lambda: ([], [Document("a.py", text)]),
        "SECOND_VERSIONS": 1,
        "CONTINUED_BY": 2,
        "prompt_ends": lambda tokenizer: torch.ones((2, 128), dtype=torch.int64),
    }.items():
        monkeypatch.setattr(evaluate, name, value)
    monkeypatch.setattr("models.tokenizer.TOKENIZER_FILE", tmp_path / "none.json")
    try:
        for flags in (["--windows", "1"], []):
            monkeypatch.setattr(sys, "argv", ["evaluate", *flags])
            evaluate.main()
            results = json.loads(capsys.readouterr().out)
            assert results["held_out_text"]["tokens"] == 1024 * (1 if flags else 4), results
            assert json.loads(record.read_text()) == ({} if flags else {"drafter": results})
    finally:
        torch.set_grad_enabled(True)
