"""A chat template that enables reasoning, and what makes the bundled model close its reasoning."""

from __future__ import annotations

TEMPLATE = """\
{% for message in messages %}{{ message.content }}{% endfor %}
{% if add_generation_prompt and enable_thinking is not false %}<think>
{% endif %}
"""
# The bundled model was trained on code. Examples in the prompt and a bias on two tokens make it end
# its reasoning.
SHOWN = '<think>\nself.x = 1\n</think>\n\n{"a": 1}\n' * 6
HELP = {"1225": 2, "28": -100}  # "</", "<"
SEEDS = range(8)
