"""Loads a transformers model with our attention from a folder, and reads its properties."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from draftloop import logs
from draftloop.errors import InvalidInput, StartupFailure
from draftloop.model_info import end_token, read_json, require_model_folder
from draftloop.runtime import dequantized, tree_attention
from draftloop.runtime.gpus import require_gpu
from draftloop.runtime.step import LONGEST_S
from draftloop.runtime.stored_weights import require_memory
from draftloop.runtime.trial import error_text, trial, unsupported_model

log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to load a model; see `ModelServiceSettings` for the meaning of each."""

    folder: Path
    dtype: str = "float32"
    device: str = "cpu"
    quantization: str = ""
    torch_compile: bool = False
    cuda_graphs: bool = True
    inflate: str = ""
    context_length: int | None = None
    memory_share: float = 0.8
    prompt_step_s: float = LONGEST_S
    max_sessions: int = 16
    max_draft_nodes: int = 64
    threads: int | None = None
    tensor_parallel_size: int = 1
    rank: int = 0  # of this process, among those that the model is split among

    @property
    def split(self) -> bool:
        """Whether other processes hold parts of the model."""
        return self.tensor_parallel_size > 1


def load_network(options: ModelOptions, device: torch.device) -> PreTrainedModel:
    """The transformers model with our attention.

    Raises StartupFailure if the folder holds no model that can be loaded, or one whose attention
    is not supported.
    """
    require_model_folder(options.folder)
    disable_progress_bar()  # every line of the log is structured
    set_verbosity_error()  # the warnings that matter are logged below
    config = read_config(options.folder)
    dtype = getattr(torch, options.dtype)
    require_memory(options.folder, dtype, device, options.tensor_parallel_size)
    method = dequantized.quantized_by(config)
    try:
        weights = dequantized.prepare(config, options.folder, dtype)
        network, report = _read(options, config, weights)
    except StartupFailure:
        raise
    except Exception as error:  # a checkpoint may lead to any library
        if error.args == (tree_attention.NAME,):
            raise unsupported_model(options.folder.name) from error
        raise _unloadable(options.folder, error) from error
    _require_all_weights(options.folder, report)
    if method:
        dequantized.finish(network, options.folder)
        log.info("weights were dequantized", quantized_by=method, dtype=options.dtype)
    tree_attention.require_supported(network.config)
    with trial(network.config.model_type):
        network.eval().requires_grad_(False)
        return network if options.split else network.to(device)


def _read(
    options: ModelOptions, config: PretrainedConfig, weights: Mapping[str, Tensor] | None
) -> tuple[PreTrainedModel, Mapping[str, Collection[Any]]]:
    """The model, with the folder's weights or the given ones, and transformers' loading report."""
    own = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)] if weights is not None else None
    network, report = (own or AutoModelForCausalLM).from_pretrained(
        None if own else options.folder,
        state_dict=weights,
        config=config,
        trust_remote_code=False,
        dtype=getattr(torch, options.dtype),
        attn_implementation=tree_attention.NAME,
        local_files_only=True,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **_parts(options),
    )
    return network, report


def read_config(folder: Path) -> PretrainedConfig:
    """The model's configuration. Raises StartupFailure.

    Our messages replace transformers', which advise trusting a model's own code or list all kinds
    of models.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        if "auto_map" in read_json(folder, "config.json"):
            raise StartupFailure(
                f"model: {folder} needs code of its own (auto_map in config.json), which is never "
                f"run here; serve a model of a kind that transformers knows"
            ) from error
        raise _unloadable(folder, error) from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise StartupFailure(
            f"model: {folder} is of the kind {config.model_type}, which is no causal language "
            f"model in transformers; serve one that is, such as Llama, Qwen2 or Mistral"
        )
    return config


def _unloadable(folder: Path, error: Exception) -> StartupFailure:
    return StartupFailure(f"model: {folder} cannot be loaded: {error_text(error)}")


def _parts(options: ModelOptions) -> dict[str, DistributedConfig]:
    """The arguments with which every rank of a split model reads only its part."""
    ranks = options.tensor_parallel_size
    return {"distributed_config": DistributedConfig(tp_size=ranks)} if options.split else {}


def _require_all_weights(folder: Path, report: Mapping[str, Collection[Any]]) -> None:
    """Raises StartupFailure if weights are missing, which transformers would leave random."""
    if missing := sorted(report["missing_keys"]):
        raise StartupFailure(f"model: {folder} lacks weights: {_first_few(missing)}")
    if unlike_sizes := sorted(report["mismatched_keys"]):
        name, found, wanted = unlike_sizes[0]
        raise StartupFailure(
            f"model: {folder}: {name} is {list(found)}, which does not fit config.json: it should "
            f"be {list(wanted)}"
        )
    if useless := sorted(report["unexpected_keys"]):
        log.warning("weights that config.json has no place for", weights=_first_few(useless))


def _first_few(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def device_of(options: ModelOptions) -> torch.device:
    """The configured device, or this rank's of a split model. Raises StartupFailure if missing."""
    name = options.device
    if name.startswith("cuda"):
        require_gpu(name)
    elif torch.cuda.is_available():
        log.warning("a GPU is not used", device=name, advice="set device to cuda")
    return torch.device(name, options.rank) if options.split else torch.device(name)


def processor_name(device: torch.device) -> str:
    """A name unique on this machine; for GPUs the UUID, as their indices differ in containers."""
    if device.type != "cuda":
        return device.type
    return str(torch.cuda.get_device_properties(device).uuid)


def threads_of(options: ModelOptions) -> int | None:
    """Threads for forwards, None for torch's default; ranks share the available ones."""
    if not options.split:
        return options.threads
    return max(1, (options.threads or torch.get_num_threads()) // options.tensor_parallel_size)


def wanted_context(options: ModelOptions, network: PreTrainedModel) -> int:
    """The configured context length, or the one that the model was trained for.

    More is refused, as dynamic RoPE would change earlier positions: raises InvalidInput. Raises
    StartupFailure if the model does not state a length.
    """
    config = network.config.get_text_config(decoder=True)
    trained = getattr(config, "max_position_embeddings", None)
    if trained is not None:
        trained = max(trained, _scaled_context(config))
    else:
        raise StartupFailure(
            f"model: {config.model_type} does not say how long a text it was trained for "
            f"(max_position_embeddings); serve a model that does"
        )
    if options.context_length is not None and options.context_length > trained:
        rule = f"must be at most {trained}, what the model was trained for"
        raise InvalidInput("context_length", rule, options.context_length)
    return options.context_length or int(trained)


def _scaled_context(config: Any) -> int:
    """The length for which YaRN (2309.00071) stretches the positions; 0 without it.

    Model cards tell users to add YaRN to the configuration, but not to change its length.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") != "yarn" or not original:
        return 0
    return round(float(original) * float(rope.get("factor", 1.0)))


def stop_tokens_of(network: PreTrainedModel, folder: Path) -> tuple[int, ...]:
    """The tokens that end a text.

    These are the ones in generation_config.json, or else in config.json, plus, as in vLLM, the
    tokenizer's end token: chat models often name the end of their turns only there. Tokens outside
    the vocabulary are left out, as they cannot occur and grammars would reject them.
    """
    config = network.config.get_text_config(decoder=True)
    generation = network.generation_config
    declared = (
        _declared_end_tokens(generation)
        or _declared_end_tokens(config)
        or _declared_end_tokens(network.config)
    )
    own = end_token(folder)
    if own is not None and own not in declared:
        declared.append(own)
    for token in declared:
        if type(token) is not int:
            raise StartupFailure(f"model: eos_token_id must be a number or a list; got {token!r}")
    known = [token for token in declared if 0 <= token < config.vocab_size]
    if unknown := [token for token in declared if token not in known]:
        log.warning("end tokens that the vocabulary does not have", token_ids=unknown)
    if not known:
        log.warning("the model names no end token", effect="texts end where they are told to")
    return tuple(known)


def _declared_end_tokens(config: Any) -> list[Any]:
    """The end tokens in a configuration."""
    token_ids = getattr(config, "eos_token_id", None)
    if token_ids is None:
        return []
    return list(token_ids) if isinstance(token_ids, list) else [token_ids]
