"""Tensor parallelism: every layer's heads and columns are split among ranks, one per device.

The split is transformers' own, by the plan that comes with a model (Megatron-LM, arXiv 1909.08053,
section 3): each rank computes its part of a layer, and there are two all-reduces per layer.
"""

from __future__ import annotations

import os

import torch
from torch import distributed
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # they are there

from draftloop.config import LOOPBACK
from draftloop.errors import InvalidInput, StartupFailure
from draftloop.runtime import dequantized
from draftloop.runtime.loading import ModelOptions, read_config

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
FIELD = "tensor_parallel_size"


def require_splittable(options: ModelOptions) -> None:
    """Raises StartupFailure or InvalidInput if the model cannot be split as configured."""
    ranks = options.tensor_parallel_size
    if options.inflate:
        raise InvalidInput("inflate", f"must not be given with {FIELD}", options.inflate)
    _require_devices(options.device, ranks)
    config = read_config(options.folder)
    if method := dequantized.quantized_by(config):
        raise StartupFailure(
            f"{FIELD}: the weights of {options.folder} are quantized by {method}, and cannot be "
            f"split; serve a checkpoint in bfloat16, or this one on one device"
        )
    text = config.get_text_config(decoder=True)
    if not text.base_model_tp_plan:
        raise StartupFailure(
            f"{FIELD}: transformers has no plan to split {config.model_type}; serve it on one "
            f"device, or a model such as Llama, Qwen2 or Mistral"
        )
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if heads % ranks:
        raise InvalidInput(FIELD, f"must divide the model's {heads} heads of keys", ranks)


def _require_devices(device: str, ranks: int) -> None:
    """Raises StartupFailure or InvalidInput if there is no device for each rank."""
    if device == "cpu":
        if torch.accelerator.is_available():
            raise StartupFailure(
                f"{FIELD}: transformers splits a model over the accelerators that it sees; "
                f"hide them from a split on the cpu (CUDA_VISIBLE_DEVICES=)"
            )
        return
    if device != "cuda":
        raise InvalidInput("device", f"must be cuda or cpu with {FIELD}", device)
    if (found := torch.cuda.device_count()) < ranks:
        raise InvalidInput(FIELD, f"must be at most {found}, the CUDA devices here", ranks)


def rendezvous(ranks: int, port: int = 0) -> TCPStore:
    """The store where the ranks meet, at the leader's port.

    Without a port, this process is the leader, and takes a free one.
    """
    leads = not port
    return TCPStore(LOOPBACK, port, ranks, is_master=leads, wait_for_workers=False)


def join(options: ModelOptions, place: Store) -> None:
    """Makes this process the rank of these options; returns when all ranks have joined."""
    device, rank = options.device, options.rank
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["LOCAL_RANK"] = str(rank)  # transformers chooses the device by it
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        BACKENDS[device], store=place, rank=rank, world_size=options.tensor_parallel_size
    )


def min_over_ranks(value: int, device: torch.device) -> int:
    """The minimum of the ranks' values."""
    found = torch.tensor(value, device=device)
    distributed.all_reduce(found, distributed.ReduceOp.MIN)
    return int(found)
