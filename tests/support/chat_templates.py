"""Abridged chat templates of models that call tools.

Each has the instructions about calls that its model gets, and the notation of calls in earlier
answers.
"""

from __future__ import annotations

QWEN3_CODER = """\
{%- if tools %}<|im_start|>system
<tools>
{%- for tool in tools %}
<function>
<name>{{ tool.function.name }}</name>
{%- for key, said in tool.function.parameters.properties | items %}
<parameter><name>{{ key }}</name><type>{{ said.type }}</type></parameter>
{%- endfor %}
</function>
{%- endfor %}
</tools>
Reply in the following format:
<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
</function>
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}{% set call = call.function %}
<tool_call>
<function={{ call.name }}>
{% for key, value in call.arguments | items %}<parameter={{ key }}>
{% if value is mapping or (value is sequence and value is not string) %}
{{- value | tojson }}{% else %}{{ value | string }}{% endif %}

</parameter>
{% endfor %}</function>
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA_PYTHONIC = """\
{{ bos_token }}
{%- if tools %}You have access to functions. Use exact format: [func_name1(param1=value1, \
param2=value2), func_name2(...)]
{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}<|header_start|>{{ message.role }}<|header_end|>

{{ message.content }}
{%- if message.tool_calls %}[
{%- for call in message.tool_calls %}{% set call = call.function %}{{ call.name }}(
{%- for key in call.arguments %}{{ key }}={{ call.arguments[key] | tojson }}
{%- if not loop.last %}, {% endif %}{% endfor %})
{%- if not loop.last %}, {% endif %}{% endfor %}]{% endif %}<|eot|>
{%- endfor %}
{%- if add_generation_prompt %}<|header_start|>assistant<|header_end|>

{% endif %}"""

LLAMA_JSON = """\
{{ bos_token }}
{%- if tools %}Respond in the format {"name": function name, "parameters": dictionary of \
argument name and its value}.
{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content }}
{%- if message.tool_calls %}{% set call = message.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}}{% endif %}
<|eot_id|>{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

_MISTRAL = """\
{{- bos_token }}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}[INST]{{ message.content }}[/INST]
{%- elif message.role == "tool" %}
{%- if message.tool_call_id | length != 9 %}{{ raise_exception("ids have 9 letters") }}{% endif %}
[TOOL_RESULTS]{{ message.tool_call_id }}[TOOL_CONTENT]{{ message.content }}[/TOOL_RESULTS]
{%- else %}{{ message.content }}
{%- for call in message.tool_calls or [] %}CALL{% endfor %}{{ eos_token }}
{%- endif %}{% endfor %}"""

# Mistral Small 3.2, which writes ids; Magistral, which writes none and needs arguments as text.
MISTRAL_WITH_IDS = _MISTRAL.replace(
    "CALL{%",
    "{{ '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' }}"
    "{{ call.function.arguments | tojson }}{%",
)
MAGISTRAL = _MISTRAL.replace(
    "CALL{%", "{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments }}{%"
) + "{# [THINK]thoughts[/THINK] #}"  # fmt: skip
# Mistral 7B v0.3 and Mistral Small 3.1, which write calls as a list.
MISTRAL_LIST = _MISTRAL.replace(
    "{%- for call in message.tool_calls or [] %}CALL{% endfor %}",
    "{%- if message.tool_calls %}[TOOL_CALLS] ["
    "{% for call in message.tool_calls %}{{ call.function | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}",
)

GPT_OSS = """\
{%- if tools %}<|start|>developer<|message|># Tools

## functions

namespace functions {
{% for tool in tools %}{% set tool = tool.function %}
type {{ tool.name }} = (_: {{ tool.parameters | tojson }}) => any;
{% endfor %}} // namespace functions<|end|>{% endif %}
{%- set told = namespace(name=none) %}
{%- for message in messages %}
{%- if message.role == "user" %}<|start|>user<|message|>{{ message.content }}<|end|>
{%- elif message.role == "tool" %}<|start|>functions.{{ told.name }} to=assistant\
<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>
{%- elif message.tool_calls %}
{%- if message.content and message.thinking %}
{{- raise_exception("Cannot pass both content and thinking") }}
{%- elif message.content or message.thinking %}<|start|>assistant<|channel|>analysis<|message|>\
{{ message.content or message.thinking }}<|end|>{% endif %}
{%- set call = message.tool_calls[0].function %}{% set told.name = call.name %}
{{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
{{- call.arguments | tojson }}<|call|>
{%- else %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

_DEEPSEEK = """\
{{- bos_token }}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}<｜User｜>{{ message.content }}<｜Assistant｜>
{%- elif message.role == "tool" %}\
<｜tool▁output▁begin｜>{{ message.content }}<｜tool▁output▁end｜>
{%- else %}{{ message.content }}
{%- if message.tool_calls %}<｜tool▁calls▁begin｜>
{%- for call in message.tool_calls %}CALL{% endfor %}<｜tool▁calls▁end｜>{% endif %}\
<｜end▁of▁sentence｜>
{%- endif %}{% endfor %}"""

# R1-0528 and V3, which put arguments as text into a fence; V3.1, which needs text too.
DEEPSEEK_V3 = _DEEPSEEK.replace(
    "CALL{%",
    "{{ '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name }}"
    "{{ '\\n```json\\n' + call.function.arguments + '\\n```<｜tool▁call▁end｜>' }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{%",
)
DEEPSEEK_V31 = _DEEPSEEK.replace(
    "CALL{%",
    "{{ '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' }}"
    "{{ call.function.arguments + '<｜tool▁call▁end｜>' }}{%",
)

KIMI_K2 = """\
{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_system|>tool<|im_middle|>\
## Return of {{ message.tool_call_id }}
{{ message.content }}
{%- else %}<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>{{ message.content }}
{%- if message.tool_calls %}<|tool_calls_section_begin|>
{%- for call in message.tool_calls %}<|tool_call_begin|>{{ call.id }}\
<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>
{%- endfor %}<|tool_calls_section_end|>{% endif %}
{%- endif %}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""

GLM45 = """\
[gMASK]<sop>
{%- if tools %}<|system|>
{{ tools | tojson }}
<tool_call>{function-name}
<arg_key>{arg-key-1}</arg_key>
<arg_value>{arg-value-1}</arg_value>
</tool_call>{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|observation|>
<tool_response>
{{ message.content }}
</tool_response>
{%- else %}<|{{ message.role }}|>
{{ message.content }}
{%- for call in message.tool_calls or [] %}{% set call = call.function %}

<tool_call>{{ call.name }}
{% for key, value in call.arguments.items() %}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

MINIMAX_M2 = """\
{%- set begin, end = "<minimax:tool_call>", "</minimax:tool_call>" -%}
]~!b[]~b]system
{%- if tools %}
{{ tools | map(attribute="function") | list | tojson }}
{{ begin }}
<invoke name="tool-name-1">
<parameter name="param-key-1">param-value-1</parameter>
</invoke>
{{ end }}{% endif %}[e~[
{%- for message in messages %}
]~b]{{ {"assistant": "ai"}.get(message.role, message.role) }}
{% if message.role == "tool" %}<response>{{ message.content }}</response>
{%- else %}{{ message.content }}
{%- if message.tool_calls %}
{{ begin }}
{%- for call in message.tool_calls %}{% set call = call.function %}
<invoke name="{{ call.name }}">
{%- for key, value in call.arguments.items() %}
<parameter name="{{ key }}">{{ value if value is string else value | tojson }}</parameter>
{%- endfor %}
</invoke>
{%- endfor %}
{{ end }}{% endif %}{% endif %}[e~[
{%- endfor %}
{%- if add_generation_prompt %}
]~b]ai
{% endif %}"""
