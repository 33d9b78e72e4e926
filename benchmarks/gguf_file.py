"""A Llama checkpoint as a GGUF file, the format of llama.cpp.

llama.cpp's own converter refuses tokenizers that it does not know, as the bundled one. The names
and the order of rotary components are those of its `LlamaModel`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants
from transformers import LlamaForCausalLM

ARCHITECTURE = "llama"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TYPES = {
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
}


def write_gguf(folder: Path, file: Path, kind: str) -> None:
    """Writes the Llama checkpoint in `folder` with weights of `kind`, one of TYPES.

    Norms stay in float32, as llama.cpp requires.
    """
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stored, file_type = TYPES[kind]
    writer = GGUFWriter(file, ARCHITECTURE)
    _write_configuration(writer, model, file_type)
    _write_tokenizer(writer, folder / "tokenizer.json")
    for name, weight in _tensors(model):
        values = weight.numpy()
        if weight.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_configuration(
    writer: GGUFWriter, model: LlamaForCausalLM, file_type: LlamaFileType
) -> None:
    config = model.config
    writer.add_file_type(file_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def _write_tokenizer(writer: GGUFWriter, file: Path) -> None:
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_add_bos_token(False)


def _tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights under GGUF's names; a head that shares the embeddings' weight is left out."""
    heads = {
        "self_attn.q_proj": model.config.num_attention_heads,
        "self_attn.k_proj": model.config.num_key_value_heads,
    }
    for name, weight in model.named_parameters():
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
        if layer is None:
            yield f"{NAMES[name.removesuffix('.weight')]}.weight", weight.detach()
            continue
        number, part = layer.groups()
        if part in heads:
            weight = _interleaved(weight, heads[part])
        yield f"blk.{number}.{LAYER_NAMES[part]}.weight", weight.detach()


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a projection with the two halves of each rotary pair side by side.

    transformers rotates component i with component i + half; llama.cpp 2i with 2i + 1.
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
