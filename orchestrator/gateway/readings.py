"""How the answers of the served model are read: its marks of reasoning, its way to write calls."""

from __future__ import annotations

import functools

from draftloop.request import TextForm
from orchestrator.deployment import Deployment
from orchestrator.gateway import harmony
from orchestrator.gateway.chat_reader import Reading
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.errors import Unsupported
from orchestrator.gateway.generating import Generating
from orchestrator.gateway.messages import joined
from orchestrator.gateway.reasoning import marks
from orchestrator.gateway.reasoning.channel_thought import ChannelThought, channels_after
from orchestrator.gateway.reasoning.marks import MARKS, Marks
from orchestrator.gateway.reasoning.thought import Thought, thought_after
from orchestrator.gateway.schemas import ChatBody
from orchestrator.gateway.structure import grammar_of
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.notations import NOTATIONS, detected
from orchestrator.gateway.tools.offer import Offer, make_offer


class Readings:
    """By the settings, or as the model's chat template shows."""

    def __init__(self, deployment: Deployment, template: ChatTemplate) -> None:
        self._settings = deployment.settings
        self._tokenizer = deployment.tokenizer
        self._template = template

    def of(self, said: ChatBody, prompt: str) -> Reading:
        """Of a chat with that prompt. Raises InvalidInput where nobody could tell its calls."""
        begun = joined(said.messages[-1].content) if said.continue_final_message else ""
        hidden = said.include_reasoning is False
        thought = self._thought(prompt, begun)
        return Reading(thought, self._offer(said, thought), hidden)

    def text_form(self, said: Generating, reading: Reading) -> TextForm:
        """What the text has to tell, for the reading or because the client wants it."""
        named = reading.named_tokens
        if said.skip_special_tokens is False:
            named |= self._tokenizer.special_tokens
        return TextForm(named_tokens=named, ending=bool(said.include_stop_str_in_output))

    def _thought(self, prompt: str, begun: str) -> Thought | ChannelThought | None:
        """What the answer may think before."""
        if self._channels:
            return channels_after(prompt, self._tokenizer)
        known = self._marks
        return known and thought_after(prompt, known, self._tokenizer, begun=begun)

    def _offer(self, said: ChatBody, thought: Thought | ChannelThought | None) -> Offer | None:
        """What the answer may call; one that calls nothing is of the form that is asked for."""
        if not said.may_call:
            return None
        if self._notation is None:
            rule = "need a model whose way to write calls is known; set --tool-call-parser"
            raise Unsupported("tools", rule, f"{len(said.offered)} tools")
        form = grammar_of(said)
        if thought is not None and form is not None:
            form = thought.headed(form)
        return make_offer(
            self._notation, said.offered, said.choice, self._tokenizer,
            parallel=said.parallel_tool_calls is not False, form=form,
        )  # fmt: skip

    @functools.cached_property
    def _marks(self) -> Marks | None:
        name = self._settings.reasoning_parser
        if name == "auto":
            return marks.detected(self._template.tools_text)
        return None if name == "none" or name == "harmony" else MARKS[name]

    @functools.cached_property
    def _channels(self) -> bool:
        name = self._settings.reasoning_parser
        shown = name == "auto" and harmony.is_shown(self._template.tools_text)
        return shown or name == "harmony"

    @functools.cached_property
    def _notation(self) -> Notation | None:
        name = self._settings.tool_call_parser
        if name == "auto":
            return detected(self._template.tools_text)
        return None if name == "none" else NOTATIONS[name]
