"""A chat template that lets models reason, and what makes the bundled one do so."""

from __future__ import annotations

TEMPLATE = """\
{% for message in messages %}{{ message.content }}{% endfor %}
{% if add_generation_prompt and enable_thinking is not false %}<think>
{% endif %}
"""
# The bundled model was trained to write code. What it has seen, and some help, makes it go on so.
SHOWN = '<think>\nself.x = 1\n</think>\n\n{"a": 1}\n' * 6
HELP = {"1225": 2, "28": -100}  # "</", "<"
SEEDS = range(8)
