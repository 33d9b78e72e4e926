"""The description that a model service gives of itself, and fingerprints of model folders."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftloop.bundled import ONLY_IN_A_CLONE, is_missing_bundled_model
from draftloop.errors import Mismatch, StartupFailure

PROTOCOL_VERSION = 1
TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"
ADAPTER = "adapter_config.json"  # of peft
SAMPLE = 4096  # bytes of a tensor
MAX_HEADER_BYTES = 100_000_000  # bytes, as safetensors itself allows
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # organization/model, as on Hugging Face


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Time of one forward: `batch` sessions, each with `tokens` new ones after `context` others."""

    tokens: int
    forward_ns: int
    context: int = 0
    batch: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Name, fingerprints and limits of a served model."""

    model_name: str
    model_fingerprint: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    context_length: int
    parameters: int
    dtype: str
    device: str
    max_sessions: int
    max_draft_nodes: int
    instance_id: str
    quantization: str = ""
    tensor_parallel_size: int = 1
    cost_inflation: str = ""
    prefix_caching: bool = False
    strategies: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    cost_curve: tuple[CostPoint, ...] = ()
    processor: str = ""
    protocol_version: int = PROTOCOL_VERSION

    @property
    def format(self) -> str:
        """Element type of activations, and of the weights if it differs."""
        return f"{self.dtype}, weights {self.quantization}" if self.quantization else self.dtype

    @property
    def place(self) -> str:
        """The device, or the number and kind of devices if there are several."""
        ranks = self.tensor_parallel_size
        return f"{ranks} x {self.device.partition(':')[0]}" if ranks > 1 else self.device

    def shares_processor(self, other: ModelInfo) -> bool:
        """Whether forwards of the two delay each other; False if a processor is unknown."""
        return bool(self.processor) and self.processor == other.processor

    def require_same_vocabulary(self, other: ModelInfo) -> None:
        """Raises Mismatch, naming both fingerprints, unless both have the same vocabulary."""
        if self.vocabulary_fingerprint != other.vocabulary_fingerprint:
            raise Mismatch(
                f"drafter and verifier have different vocabularies: "
                f"{self.model_name} has {self.vocabulary_fingerprint}, "
                f"{other.model_name} has {other.vocabulary_fingerprint}; "
                f"serve a draft model with the target model's tokenizer"
            )

    def require_same_model(self, other: ModelInfo) -> None:
        """Raises Mismatch, naming both, unless replicas of the two would write the same text."""
        expected, found = (
            f"{model.model_name} with fingerprint {model.model_fingerprint} in {model.format}"
            for model in (self, other)
        )
        if (self.model_fingerprint, self.format) != (other.model_fingerprint, other.format):
            raise Mismatch(f"replicas must serve one model: the first has {expected}, this {found}")

    def require_protocol(self) -> None:
        """Raises Mismatch unless the service speaks this protocol version."""
        if self.protocol_version != PROTOCOL_VERSION:
            raise Mismatch(
                f"{self.model_name} speaks protocol version {self.protocol_version}, "
                f"this side speaks {PROTOCOL_VERSION}; upgrade the older one"
            )


def vocabulary_fingerprint(model_folder: Path, setting: str = "model") -> str:
    """Hash over vocabulary, merges and added tokens of `tokenizer.json`; 16 hex digits.

    Raises StartupFailure, which names the `setting` that gave the folder, if the file is missing or
    is not a tokenizer.
    """
    tokenizer = read_json(model_folder, TOKENIZER, setting)
    model = tokenizer.get("model", {})
    parts = [model.get("vocab"), model.get("merges"), tokenizer.get("added_tokens")]
    return _digest(json.dumps(parts, sort_keys=True).encode())


def model_fingerprint(model_folder: Path, made_for: str = "") -> str:
    """Hash over configuration, stop tokens, and a sample of every tensor; 16 hex digits.

    Tensors are sampled because a fine-tuned model has the names, the sizes and often the embeddings
    of its base model. `made_for`: which variant the files are loaded as, if it is not the usual
    one; for example, LongRoPE's for short texts.
    """
    parts = [made_for.encode()] if made_for else []
    parts += [json.dumps(read_json(model_folder, "config.json"), sort_keys=True).encode()]
    if (model_folder / GENERATION).is_file():
        stops = read_json(model_folder, GENERATION).get("eos_token_id")
        parts.append(json.dumps(stops).encode())
    for file in sorted(model_folder.glob("*.safetensors")):
        parts += [file.name.encode(), *_samples(file)]
    return _digest(b"\0".join(parts))


def _samples(weights: Path) -> Iterator[bytes]:
    """The header of a safetensors file, and some bytes from the middle of every tensor."""
    with weights.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(min(length, MAX_HEADER_BYTES))
        yield header
        for begin, end in _places(header):
            stream.seek(8 + length + max(begin, (begin + end - SAMPLE) // 2))
            yield stream.read(min(SAMPLE, end - begin))
        stream.seek(0)
        yield stream.read(SAMPLE)  # for a file without a valid header, which loading refuses


def _places(header: bytes) -> list[tuple[int, int]]:
    """Begin and end of every tensor, relative to the header's end, in order; empty if invalid."""
    try:
        tensors = json.loads(header)
        offsets = (t["data_offsets"] for name, t in tensors.items() if name != "__metadata__")
        return sorted((int(begin), int(end)) for begin, end in offsets)
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def end_token(model_folder: Path) -> int | None:
    """The token that the tokenizer itself names as the end of a text; None if it names none.

    Raises StartupFailure if its files cannot be read.
    """
    if not (model_folder / "tokenizer_config.json").is_file():
        return None
    named = read_json(model_folder, "tokenizer_config.json").get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    if not isinstance(text, str):
        return None
    tokenizer = read_json(model_folder, TOKENIZER)
    known = tokenizer.get("model", {}).get("vocab")
    ids = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    found = ids.get(text, known.get(text) if isinstance(known, dict) else None)
    return found if isinstance(found, int) else None


def require_model_folder(folder: Path, setting: str = "model") -> None:
    """Raises StartupFailure unless `folder` holds a model whose weights are pure data.

    The error names the `setting` that gave the folder.
    """
    for name in ("config.json", TOKENIZER):
        if not (folder / name).is_file():
            raise _missing(folder, name, setting)
    if not any(folder.glob("*.safetensors")):
        raise StartupFailure(
            f"{setting}: {folder} holds no .safetensors file; pickled weights (.bin, .pt) can run "
            f"code and are never read: convert them with `save_pretrained`"
        )


def _missing(folder: Path, name: str, setting: str) -> StartupFailure:
    if is_missing_bundled_model(folder):
        return StartupFailure(f"{setting}: {ONLY_IN_A_CLONE}")
    return StartupFailure(
        f"{setting}: {folder} holds no {name}; give the folder of a Hugging Face model"
        f"{_advice(folder, name)}"
    )


def _advice(folder: Path, name: str) -> str:
    """How to obtain what is missing, if what was given suggests it."""
    if folder.suffix.lower() == ".gguf" or any(folder.glob("*.gguf")):
        return "; GGUF is not read: docs/coming_from.md says how it becomes safetensors"
    if (folder / ADAPTER).is_file():
        return (
            "; an adapter is no model by itself: merge it into the one that it was trained for, "
            "`PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(folder)`"
        )
    if HUB_NAME.fullmatch(str(folder)) and not folder.exists():
        fetched = f"`hf download {folder} --local-dir {folder.name}`"
        return f"; to fetch this one: {fetched}, and give the folder {folder.name}"
    if name == TOKENIZER:
        return (
            "; a tokenizer.model alone is not read: write the other with "
            "`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
        )
    return ""


def read_json(folder: Path, name: str, setting: str = "model") -> dict[str, Any]:
    try:
        loaded = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _missing(folder, name, setting) from None
    except (ValueError, OSError) as error:
        raise StartupFailure(f"{setting}: {folder / name} cannot be read: {error}") from None
    if not isinstance(loaded, dict):
        raise StartupFailure(f"{setting}: {folder / name} is not a JSON object")
    return loaded


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
