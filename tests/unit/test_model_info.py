"""Fingerprints, and mismatches between services."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftloop import processor
from draftloop.errors import Mismatch, StartupFailure
from draftloop.model_info import (
    end_token,
    model_fingerprint,
    require_model_folder,
    vocabulary_fingerprint,
)
from tests.support.fresh_process import output_of
from tests.support.model_info import model_info

INFO = model_info(vocabulary_size=8, parameters=100, max_draft_nodes=4, instance_id="one")
TOKENIZER = {"model": {"vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": []}


def write_model_folder(folder: Path, tokenizer: object = TOKENIZER, config: object = None) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    return folder


def test_vocabulary_mismatch_names_both_models() -> None:
    drafter = replace(INFO, model_name="draft", vocabulary_fingerprint="cc")
    INFO.require_same_vocabulary(replace(INFO, model_name="draft"))
    with pytest.raises(Mismatch, match=r"draft has cc, target has bb.*target model's tokenizer"):
        drafter.require_same_vocabulary(INFO)


def test_protocol_version_mismatch() -> None:
    INFO.require_protocol()
    with pytest.raises(Mismatch, match="target speaks protocol version 9, this side speaks 1"):
        replace(INFO, protocol_version=9).require_protocol()


def test_vocabulary_fingerprint_depends_on_ids_not_order(tmp_path: Path) -> None:
    first = vocabulary_fingerprint(write_model_folder(tmp_path))
    reordered = {**TOKENIZER, "model": {"merges": [], "vocab": {"b": 1, "a": 0}}, "version": "1"}
    assert vocabulary_fingerprint(write_model_folder(tmp_path, reordered)) == first
    changed = {**TOKENIZER, "model": {"vocab": {"a": 1, "b": 0}, "merges": []}}
    assert vocabulary_fingerprint(write_model_folder(tmp_path, changed)) != first
    assert len(first) == 16


def test_model_fingerprint_depends_on_configuration_and_weights(tmp_path: Path) -> None:
    seen = {model_fingerprint(write_model_folder(tmp_path))}
    seen.add(model_fingerprint(write_model_folder(tmp_path, config={"model_type": "qwen2"})))
    (tmp_path / "model.safetensors").write_bytes(b"one")
    seen.add(model_fingerprint(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"two")
    seen.add(model_fingerprint(tmp_path))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    seen.add(model_fingerprint(tmp_path))
    assert len(seen) == 5


@pytest.mark.parametrize("changed", ["first", "middle", "last"])
def test_fine_tuned_model_has_another_fingerprint(tmp_path: Path, changed: str) -> None:
    """Whichever tensor differs, at any place in a file with the same header."""
    tensors = {name: torch.zeros(40_000) for name in ("first", "middle", "last")}
    write_model_folder(tmp_path)
    seen = set()
    for value in (0, 1):
        tensors[changed] += value
        save_file(tensors, tmp_path / "model.safetensors")
        seen.add(model_fingerprint(tmp_path))
    assert len(seen) == 2


def test_fingerprint_of_an_empty_tensor_or_file(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    save_file({"none": torch.zeros(0), "one": torch.ones(1)}, tmp_path / "a.safetensors")
    first = model_fingerprint(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"")
    assert model_fingerprint(tmp_path) != first


def test_folder_without_a_tokenizer_is_reported_with_a_remedy(tmp_path: Path) -> None:
    """The error comes before torch is imported, and names the setting that was given."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "tokenizer.model").write_bytes(b"pieces")
    with pytest.raises(StartupFailure) as caught:
        require_model_folder(tmp_path, "draft")
    assert str(caught.value) == (
        f"draft: {tmp_path} holds no tokenizer.json; give the folder of a Hugging Face model; "
        f"a tokenizer.model alone is not read: write the other with "
        f"`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
    )
    for setting in ("model", "tokenizer"):
        with pytest.raises(StartupFailure, match=rf"^{setting}: .* holds no tokenizer\.json"):
            vocabulary_fingerprint(tmp_path, setting)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(StartupFailure, match="^tokenizer: .* is not a JSON object"):
        vocabulary_fingerprint(tmp_path, "tokenizer")
    require_model_folder(tmp_path)


def test_missing_model_folder_is_reported_with_a_remedy(tmp_path: Path) -> None:
    """Users give a model's name on Hugging Face, or a file of another program."""

    def refusal(folder: Path) -> str:
        with pytest.raises(StartupFailure) as caught:
            require_model_folder(folder, "target")
        return str(caught.value)

    missing = "holds no config.json; give the folder of a Hugging Face model"
    assert refusal(Path("Qwen/Qwen3-8B")) == (
        f"target: Qwen/Qwen3-8B {missing}; to fetch this one: "
        "`hf download Qwen/Qwen3-8B --local-dir Qwen3-8B`, and give the folder Qwen3-8B"
    )
    assert refusal(tmp_path / "Qwen3-8B") == f"target: {tmp_path / 'Qwen3-8B'} {missing}"
    gguf = "; GGUF is not read: docs/coming_from.md says how it becomes safetensors"
    file = tmp_path / "qwen.gguf"
    file.touch()
    for path in (file, tmp_path):
        assert refusal(path) == f"target: {path} {missing}{gguf}"
    file.unlink()
    (tmp_path / "adapter_config.json").touch()
    assert "; an adapter is no model by itself: merge it into the one" in refusal(tmp_path)


@pytest.mark.parametrize(("named", "token"), [
    (None, None), ("a", 0), ("<end>", 7), ({"content": "<end>", "special": True}, 7), ("c", None),
], ids=str)  # fmt: skip
def test_end_token_is_read_from_the_tokenizer_config(
    tmp_path: Path, named: object, token: int | None
) -> None:
    added = {**TOKENIZER, "added_tokens": [{"id": 7, "content": "<end>"}]}
    write_model_folder(tmp_path, added)
    assert end_token(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    assert end_token(tmp_path) == token


def test_missing_or_invalid_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StartupFailure, match=r"holds no config\.json; give the folder"):
        require_model_folder(tmp_path)
    with pytest.raises(StartupFailure, match=r"holds no tokenizer\.json; give the folder"):
        vocabulary_fingerprint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(StartupFailure, match=r"tokenizer\.json cannot be read"):
        vocabulary_fingerprint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(StartupFailure, match="is not a JSON object"):
        vocabulary_fingerprint(tmp_path)


def test_shares_processor_compares_processor_ids() -> None:
    info = replace(INFO, processor="one")
    assert info.shares_processor(replace(info, model_name="draft"))
    assert not info.shares_processor(replace(info, processor="two"))
    unknown = replace(INFO, processor="")
    assert not unknown.shares_processor(unknown), "services of an earlier version do not say"


def test_processor_id_is_the_same_in_all_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A processor's id is the same in all processes of a machine, and differs on another machine.
    script = "from draftloop.processor import processor_id; print(processor_id('cpu'))"
    local = processor.processor_id("cpu")
    assert output_of(script) == local != processor.processor_id("GPU-1")
    assert len(local) == 16 and int(local, 16)
    monkeypatch.setattr(processor, "BOOT_ID", Path("/nowhere"))
    other_boot = processor.processor_id("cpu")
    assert other_boot != local and other_boot == processor.processor_id("cpu")
