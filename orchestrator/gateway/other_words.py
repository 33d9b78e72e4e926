"""The base of bodies that are translated to chats: those of the Responses and Messages APIs."""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr

from orchestrator.gateway.generating import Sampling
from orchestrator.gateway.renaming import Renaming
from orchestrator.gateway.schemas import ChatBody, TemplateOptions

# Fields that chats have under the same name.
CHAT_FIELDS = {*Sampling.model_fields, "chat_template_kwargs", "include_reasoning"}


class TranslatedBody(Sampling):
    """A body that is translated to a chat once it has been validated."""

    chat_template_kwargs: TemplateOptions | None = None
    include_reasoning: bool | None = None
    _chat: ChatBody = PrivateAttr()

    @property
    def chat(self) -> ChatBody:
        """The chat that the body was translated to."""
        return self._chat

    def _set_chat(self, chat_fields: dict[str, Any], names: Renaming) -> None:
        """Sets `chat`, validated; its errors have the client's `names` of fields.

        Only this second validation makes a chat's types and applies its rules across fields. Only
        the first knows the places of what the client wrote.
        """
        with names():
            self._chat = ChatBody.model_validate(chat_fields)
