"""How the answers of the served model are read: its marks of reasoning, its notation of calls."""

from __future__ import annotations

import functools

from draftloop.request import TextForm
from orchestrator.deployment import Deployment
from orchestrator.gateway import harmony
from orchestrator.gateway.chat_reader import Reading
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.errors import Unsupported
from orchestrator.gateway.generating import Generating
from orchestrator.gateway.messages import join_text
from orchestrator.gateway.reasoning import marks
from orchestrator.gateway.reasoning.channel_thought import ChannelThought, channels_after
from orchestrator.gateway.reasoning.marks import MARKS, Marks
from orchestrator.gateway.reasoning.thought import Thought, thought_after
from orchestrator.gateway.schemas import ChatBody
from orchestrator.gateway.structure import grammar_of
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.notations import NOTATIONS, detect_notation
from orchestrator.gateway.tools.offer import Offer, make_offer


class Readings:
    """Chooses how to read answers: as the settings say, or as the model's chat template shows."""

    def __init__(self, deployment: Deployment, template: ChatTemplate) -> None:
        self._settings = deployment.settings
        self._tokenizer = deployment.tokenizer
        self._template = template

    def of(self, body: ChatBody, prompt: str) -> Reading:
        """The reading of a chat's answers. Raises InvalidInput if its calls could not be read."""
        answer_start = join_text(body.messages[-1].content) if body.continue_final_message else ""
        hidden = body.include_reasoning is False
        thought = self._thought(prompt, answer_start)
        return Reading(thought, self._offer(body, thought), hidden)

    def text_form(self, body: Generating, reading: Reading) -> TextForm:
        """Which special tokens and endings the text shows, for the reading or for the client."""
        named = reading.named_tokens
        if body.skip_special_tokens is False:
            named |= self._tokenizer.special_tokens
        return TextForm(named_tokens=named, ending=bool(body.include_stop_str_in_output))

    def _thought(self, prompt: str, answer_start: str) -> Thought | ChannelThought | None:
        """The reasoning that the answer may have; None if it has none that is marked.

        `answer_start`: what the prompt already has of the answer.
        """
        if self._channels:
            return channels_after(prompt, self._tokenizer)
        known = self._marks
        return known and thought_after(prompt, known, self._tokenizer, answer_start=answer_start)

    def _offer(self, body: ChatBody, thought: Thought | ChannelThought | None) -> Offer | None:
        """The calls that the answer may have; without calls, it has the form that was asked for."""
        if not body.can_call_tools:
            return None
        if self._notation is None:
            rule = "need a model whose way to write calls is known; set --tool-call-parser"
            raise Unsupported("tools", rule, f"{len(body.offered)} tools")
        form = grammar_of(body)
        if thought is not None and form is not None:
            form = thought.headed(form)
        return make_offer(
            self._notation, body.offered, body.choice, self._tokenizer,
            parallel=body.parallel_tool_calls is not False, form=form,
        )  # fmt: skip

    @functools.cached_property
    def _marks(self) -> Marks | None:
        name = self._settings.reasoning_parser
        if name == "auto":
            return marks.detect_marks(self._template.tools_text)
        return None if name == "none" or name == "harmony" else MARKS[name]

    @functools.cached_property
    def _channels(self) -> bool:
        name = self._settings.reasoning_parser
        shown = name == "auto" and harmony.uses_harmony(self._template.tools_text)
        return shown or name == "harmony"

    @functools.cached_property
    def _notation(self) -> Notation | None:
        name = self._settings.tool_call_parser
        if name == "auto":
            return detect_notation(self._template.tools_text)
        return None if name == "none" else NOTATIONS[name]
