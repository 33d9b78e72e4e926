"""Answers that call tools, in every notation."""

from __future__ import annotations

from orchestrator.gateway.tools.glm45 import GLM45
from orchestrator.gateway.tools.harmony import HARMONY
from orchestrator.gateway.tools.minimax_m2 import MINIMAX_M2
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER
from orchestrator.gateway.tools.schemas import Function

WEATHER = '{"name": "weather", "arguments": {"city": "Bern", "days": {"first": 1}}}'
BRACES = '{"name": "say", "arguments": {"text": "a } \\" { \\\\"}}'
READ = (
    ("weather", '{"city": "Bern", "days": {"first": 1}}'),
    ("say", '{"text": "a } \\" { \\\\"}'),
)
ANSWERS = {
    "hermes": f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{BRACES}\n</tool_call>",
    "llama3_json": f"{WEATHER}; {BRACES}".replace("arguments", "parameters"),
    "mistral": f"[TOOL_CALLS] [{WEATHER}, {BRACES}]",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n"
    '<parameter=days>\n{"first": 1}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n'
    '<function=say>\n<parameter=text>\na } " { \\\n</parameter>\n</function>\n</tool_call>',
    "pythonic": "[weather(city='Bern', days={'first': 1}), say(text='a } \" { \\\\')]",
}
ANSWERS["harmony"] = (
    f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{READ[0][1]}<|call|>"
    f"<|channel|>commentary to=functions.say<|message|> {READ[1][1]}<|call|>"
)
ANSWERS["deepseek"] = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    f"{READ[0][1]}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>say\n```json\n"
    f"{READ[1][1]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
ANSWERS["kimi_k2"] = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    f"<|tool_call_argument_begin|>{READ[0][1]}<|tool_call_end|><|tool_call_begin|>functions.say:1"
    f"<|tool_call_argument_begin|>{READ[1][1]}<|tool_call_end|><|tool_calls_section_end|>"
)
ANSWERS["glm45"] = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n"
    '<arg_key>days</arg_key>\n<arg_value>{"first": 1}</arg_value>\n</tool_call>\n<tool_call>say\n'
    '<arg_key>text</arg_key>\n<arg_value>a } " { \\</arg_value>\n</tool_call>'
)
ANSWERS["minimax_m2"] = (
    '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Bern</parameter>\n'
    '<parameter name="days">{"first": 1}</parameter>\n</invoke>\n<invoke name="say">\n'
    '<parameter name="text">a } " { \\</parameter>\n</invoke>\n</minimax:tool_call>'
)
BETWEEN_TAGS = (QWEN3_CODER, GLM45, MINIMAX_M2)  # whose schemas distinguish texts from other values
KNOWN = {"weather": Function(name="weather", parameters={
    "properties": {"city": {"type": "string"}, "days": {"type": "object"}}})}  # fmt: skip

FUNCTIONS = [
    Function(name="weather", parameters={
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False}),
    Function(name='od"d'),
]  # fmt: skip
ODD = '{"name": "od\\"d", "arguments": {}}'
ONE = '{"name": "weather", "arguments": {"city": "Bern"}}'
TAGGED = """\
<tool_call>
<function=weather>
<parameter=city>
Bern
</parameter>
</function>
</tool_call>"""
PAIRED = """\
<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Bern</arg_value>
</tool_call>"""
INVOKED = """\
<invoke name="weather">
<parameter name="city">Bern</parameter>
</invoke>"""
MESSAGE = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "x"}'
FENCED = """\
<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
```json
{"city": "Bern"}
```<｜tool▁call▁end｜>"""
NUMBERED = (
    '<|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>{"city": "Bern"}'
    "<|tool_call_end|>"
)
# Text around all calls, text between them, and two calls.
FORMS = {
    "hermes": ("<tool_call>\n{}\n</tool_call>", "\n</tool_call>\n<tool_call>\n", ONE, ODD),
    "llama3_json": ("{}", "; ", *(one.replace("arguments", "parameters") for one in (ONE, ODD))),
    "mistral": ("[TOOL_CALLS] [{}]", ", ", ONE, ODD),
    "qwen3_coder": ("{}", "\n", TAGGED, TAGGED),
    "pythonic": ("[{}]", ", ", 'weather(city="Bern")', 'weather(city="Bern")'),
    "deepseek": ("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", "\n", FENCED, FENCED),
    "kimi_k2": (
        "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>", "", NUMBERED,
        NUMBERED.replace(":3", ":4"),
    ),
    "glm45": ("{}", "\n", PAIRED, PAIRED),
    "minimax_m2": (
        "<minimax:tool_call>\n{}\n</minimax:tool_call>", "\n", INVOKED, INVOKED,
    ),
}  # fmt: skip


def answers(notation: Notation) -> tuple[str, str, str]:
    """An answer with one call, one with two, and one whose arguments break the schema."""
    if notation is HARMONY:  # whose answers end after a call
        return MESSAGE, MESSAGE, MESSAGE.replace("city", "town")
    around, between, one, two = FORMS[notation.name]
    several = around.replace("{}", f"{one}{between}{two}")
    return around.replace("{}", one), several, around.replace("{}", one.replace("city", "town"))
