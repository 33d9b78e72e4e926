"""vLLM's and SGLang's names of reasoning and tool call parsers, accepted as aliases of ours."""

from __future__ import annotations

# By setting: their name to ours.
PARSER_ALIASES = {
    "tool_call_parser": {
        "openai": "harmony",
        "gpt-oss": "harmony",
        "llama3": "llama3_json",
        "llama4_json": "llama3_json",
        "llama4_pythonic": "pythonic",
        "qwen": "hermes",
        "qwen25": "hermes",
        "qwen3_xml": "qwen3_coder",
        "deepseek_v3": "deepseek",
        "deepseek_v31": "deepseek",
        "deepseekv3": "deepseek",
        "deepseekv31": "deepseek",
        "glm": "glm45",
        "glm47": "glm45",
        "minimax-m2": "minimax_m2",
    },
    "reasoning_parser": {
        "deepseek_r1": "think",
        "deepseek-r1": "think",
        "deepseek_v3": "think",
        "deepseek-v3": "think",
        "kimi_k2": "think",
        "qwen3": "think",
        "glm45": "think",
        "minimax": "think",
        "minimax_m2": "think",
        "seed_oss": "seed",
        "openai_gptoss": "harmony",
        "gpt-oss": "harmony",
    },
}
