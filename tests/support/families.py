"""Tiny models of many architectures."""

from __future__ import annotations

from typing import Any

from transformers import (
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    HunYuanMoEV1Config,
    LongcatFlashConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    Phi3Config,
    PhimoeConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

from tests.support.toy_model import SIZES, llama_config

WIDE: dict[str, Any] = {**SIZES, "pad_token_id": 1, "initializer_range": 0.3}
OWN_HEADS: dict[str, Any] = {name: WIDE[name] for name in WIDE if name != "num_key_value_heads"}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
NAMED_OTHERWISE = ("num_hidden_layers", "num_key_value_heads", "intermediate_size")
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
# gpt-oss has YaRN by default, for 131,072 positions.
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False, "original_max_position_embeddings": SIZES["max_position_embeddings"] // 4,
}  # fmt: skip
# They cover different kinds of attention, positions and names of sizes, not all of transformers.
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": llama_config(),
    "mistral": MistralConfig(**WIDE, sliding_window=8),
    "mixtral": MixtralConfig(**WIDE, **EXPERTS),
    "qwen2": Qwen2Config(**WIDE),
    "qwen3": Qwen3Config(**WIDE, head_dim=16),
    "phi3": Phi3Config(**WIDE),
    "gemma2": Gemma2Config(**WIDE, head_dim=8, sliding_window=8, attn_logit_softcapping=2.0),
    "gemma3": Gemma3TextConfig(**WIDE, head_dim=8, sliding_window=8),
    # Its last layers reuse keys and values of earlier ones.
    "gemma4": Gemma4TextConfig(
        **{**WIDE, "num_hidden_layers": 4}, head_dim=8, global_head_dim=8, num_kv_shared_layers=2,
        vocab_size_per_layer_input=SIZES["vocab_size"], hidden_size_per_layer_input=8,
        sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    "gpt2": GPT2Config(**OWN_HEADS),
    "gpt_neox": GPTNeoXConfig(**OWN_HEADS),
    # The kernel does not support heads of six dimensions: torch computes them, as on a GPU.
    "gemma2 by torch": Gemma2Config(**WIDE, head_dim=6, attn_logit_softcapping=2.0),
    "gpt_oss by torch": GptOssConfig(
        **WIDE, **EXPERTS, head_dim=6, sliding_window=8, rope_parameters=YARN
    ),
    "gpt_oss": GptOssConfig(**WIDE, **EXPERTS, head_dim=8, sliding_window=8, rope_parameters=YARN),
    "opt": OPTConfig(**OWN_HEADS, ffn_dim=48, word_embed_proj_dim=32),
    # The layers of these two see the sliding window only through their mask.
    "phimoe": PhimoeConfig(**WIDE, **EXPERTS, sliding_window=8),
    "qwen2_moe": Qwen2MoeConfig(
        **WIDE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, use_sliding_window=True, sliding_window=8,
        max_window_layers=1,
    ),
    # Its router reads the weights of a layer that we have replaced.
    "hunyuan_v1_moe": HunYuanMoEV1Config(**WIDE, num_experts=4, moe_topk=2, head_dim=8),
    "deepseek_v3": DeepseekV3Config(
        **{**WIDE, "num_key_value_heads": 4}, moe_intermediate_size=24, n_routed_experts=4,
        num_experts_per_tok=2, n_group=2, topk_group=1, **LATENT,
    ),
    # Its router multiplies by the weights of a layer that we have replaced.
    "longcat_flash": LongcatFlashConfig(
        **{name: size for name, size in WIDE.items() if name not in NAMED_OTHERWISE}, **LATENT,
        num_layers=1, ffn_hidden_size=48, expert_ffn_hidden_size=24, n_routed_experts=4,
        zero_expert_num=2, moe_topk=2, head_dim=8,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
}  # fmt: skip
