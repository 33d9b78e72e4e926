"""The three Llama shapes, their initialisation, and growth in depth that keeps the function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from models.tokenizer import END_OF_TEXT_ID, MAX_LENGTH, VOCABULARY

INITIAL_DEVIATION = 0.02
# Layers of the verifier from which the large draft model starts.
LARGE_DRAFTER_LAYERS = (0, 2, 4)


def configuration(hidden: int, layers: int, intermediate: int) -> LlamaConfig:
    """A Llama of four heads with tied embeddings, sharing the bundled tokenizer."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=intermediate,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=END_OF_TEXT_ID,
        initializer_range=INITIAL_DEVIATION,
    )


def verifier_configuration(layers: int = 6) -> LlamaConfig:
    """The verifier's shape: 12.2M parameters at six layers."""
    return configuration(hidden=384, layers=layers, intermediate=1024)


def drafter_configuration() -> LlamaConfig:
    """The draft model's shape: 0.95M parameters, more than half of them embeddings."""
    return configuration(hidden=128, layers=2, intermediate=384)


def large_drafter_configuration() -> LlamaConfig:
    """The large draft model's: 6.9M parameters, the verifier's shape with half of the layers."""
    return verifier_configuration(layers=len(LARGE_DRAFTER_LAYERS))


def silence(layer: torch.nn.Module) -> None:
    """Zeroes both output projections: the layer adds nothing to the residual stream."""
    for name, parameter in layer.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(parameter)


def build(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """A fresh float32 model in which every layer starts as the identity."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        silence(layer)
    return model


def thinned(model: LlamaForCausalLM, layers: Sequence[int]) -> LlamaForCausalLM:
    """A copy with only the decoder layers numbered `layers`, and everything else."""
    return rebuilt(model, [(layer, False) for layer in layers])


def grow(model: LlamaForCausalLM, layers: int) -> LlamaForCausalLM:
    """A deeper model that computes the same function: silenced copies follow the copied layers.

    Raises ValueError unless `layers` is between the present depth and its double.
    """
    present = model.config.num_hidden_layers
    if not present <= layers <= 2 * present:
        raise ValueError(f"cannot grow from {present} to {layers} layers: at most double")
    return rebuilt(model, growth_plan(present, layers))


def rebuilt(model: LlamaForCausalLM, plan: Sequence[tuple[int, bool]]) -> LlamaForCausalLM:
    """A copy with the layers of `plan`: pairs of (source layer, whether it is silenced)."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(plan)
    config.layer_types = None
    made = LlamaForCausalLM(config)
    made.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    made.model.norm.load_state_dict(model.model.norm.state_dict())
    for layer, (source, is_silent) in zip(made.model.layers, plan, strict=True):
        layer.load_state_dict(model.model.layers[source].state_dict())
        if is_silent:
            silence(layer)
    return made


def growth_plan(present: int, layers: int) -> list[tuple[int, bool]]:
    """(source layer, whether it is a copy) for every layer of the grown model, in order."""
    copies = layers - present
    plan = []
    for source in range(present):
        plan.append((source, False))
        if source >= present - copies:
            plan.append((source, True))
    return plan


CONFIGURATIONS: Mapping[str, Callable[[], LlamaConfig]] = {
    "verifier": verifier_configuration,
    "drafter": drafter_configuration,
    "drafter-large": large_drafter_configuration,
}  # by the name of a bundled model, which is that of its folder
