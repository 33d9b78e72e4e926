"""From a folder to a transformers model with our attention, and what it says of itself."""

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
from draftloop.runtime.trial import said_by, trial, unlike

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
    rank: int = 0  # of those among which the model is split

    @property
    def split(self) -> bool:
        """Whether other processes hold parts of the model."""
        return self.tensor_parallel_size > 1


def load_network(options: ModelOptions, device: torch.device) -> PreTrainedModel:
    """The transformers model with our attention.

    Raises StartupFailure where the folder holds no model that can be loaded, or one whose
    attention differs from ours.
    """
    require_model_folder(options.folder)
    disable_progress_bar()  # every line of the log is structured
    set_verbosity_error()  # what matters of the rest is said below
    config = read_config(options.folder)
    dtype = getattr(torch, options.dtype)
    require_memory(options.folder, dtype, device, options.tensor_parallel_size)
    method = dequantized.quantized_by(config)
    try:
        weights = dequantized.prepare(config, options.folder, dtype)
        network, report = _read(options, config, weights)
    except StartupFailure:
        raise
    except Exception as error:  # of whatever library a checkpoint leads to
        if error.args == (tree_attention.NAME,):
            raise unlike(options.folder.name) from error
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
    """The model of the folder, or with these weights, and what was missing or too much."""
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
    """The model's configuration, as its folder has it. Raises StartupFailure.

    In words of ours where transformers would advise to trust a model's own code, or name all that
    it knows.
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
    return StartupFailure(f"model: {folder} cannot be loaded: {said_by(error)}")


def _parts(options: ModelOptions) -> dict[str, DistributedConfig]:
    """What has every rank of a split model read its part alone."""
    ranks = options.tensor_parallel_size
    return {"distributed_config": DistributedConfig(tp_size=ranks)} if options.split else {}


def _require_all_weights(folder: Path, report: Mapping[str, Collection[Any]]) -> None:
    """Raises StartupFailure where transformers would go on with random weights."""
    if missing := sorted(report["missing_keys"]):
        raise StartupFailure(f"model: {folder} lacks weights: {_some(missing)}")
    if unlike_sizes := sorted(report["mismatched_keys"]):
        name, found, wanted = unlike_sizes[0]
        raise StartupFailure(
            f"model: {folder}: {name} is {list(found)}, which does not fit config.json: it should "
            f"be {list(wanted)}"
        )
    if useless := sorted(report["unexpected_keys"]):
        log.warning("weights that config.json has no place for", weights=_some(useless))


def _some(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def device_of(options: ModelOptions) -> torch.device:
    """The device of that name, of a split model this rank's. Raises StartupFailure without one."""
    name = options.device
    if name.startswith("cuda"):
        require_gpu(name)
    elif torch.cuda.is_available():
        log.warning("a GPU is not used", device=name, advice="set device to cuda")
    return torch.device(name, options.rank) if options.split else torch.device(name)


def processor_name(device: torch.device) -> str:
    """One that no other processor of this machine has: a GPU has other numbers in containers."""
    if device.type != "cuda":
        return device.type
    return str(torch.cuda.get_device_properties(device).uuid)


def threads_of(options: ModelOptions) -> int | None:
    """Threads for forwards where they are not torch's own choice; ranks share what there is."""
    if not options.split:
        return options.threads
    return max(1, (options.threads or torch.get_num_threads()) // options.tensor_parallel_size)


def wanted_context(options: ModelOptions, network: PreTrainedModel) -> int:
    """The context length that was asked for, or the one that the model was trained for.

    Never beyond that: dynamic RoPE would change earlier positions. Raises InvalidInput, and
    StartupFailure where the model does not say.
    """
    config = network.config.get_text_config(decoder=True)
    trained = getattr(config, "max_position_embeddings", None)
    if trained is None:
        raise StartupFailure(
            f"model: {config.model_type} does not say how long a text it was trained for "
            f"(max_position_embeddings); serve a model that does"
        )
    if options.context_length is not None and options.context_length > trained:
        rule = f"must be at most {trained}, what the model was trained for"
        raise InvalidInput("context_length", rule, options.context_length)
    return options.context_length or int(trained)


def stop_tokens_of(network: PreTrainedModel, folder: Path) -> tuple[int, ...]:
    """The tokens that end a text.

    Those of generation_config.json, as transformers has it; where that names none, those of
    config.json; and besides, as in vLLM, the one that the tokenizer calls the end: models that were
    taught to chat often name the end of their turns nowhere else. Tokens that the vocabulary does
    not have are left out: nobody can say them, and grammars would not take them.
    """
    config = network.config.get_text_config(decoder=True)
    generation = network.generation_config
    declared = _declared(generation) or _declared(config) or _declared(network.config)
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


def _declared(config: Any) -> list[Any]:
    """What a configuration says of end tokens."""
    said = getattr(config, "eos_token_id", None)
    if said is None:
        return []
    return list(said) if isinstance(said, list) else [said]
