"""Bodies of APIs in which a chat is asked for in other words."""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr

from orchestrator.gateway.generating import Sampling
from orchestrator.gateway.renaming import Renaming
from orchestrator.gateway.schemas import ChatBody, TemplateOptions

# Fields that chats have under the same name.
SHARED = {*Sampling.model_fields, "chat_template_kwargs", "include_reasoning"}


class InOtherWords(Sampling):
    """What it asks for is a chat, which it becomes once it has been checked."""

    chat_template_kwargs: TemplateOptions | None = None
    include_reasoning: bool | None = None
    _chat: ChatBody = PrivateAttr()

    @property
    def chat(self) -> ChatBody:
        """What it asks for."""
        return self._chat

    def _become(self, said: dict[str, Any], names: Renaming) -> None:
        """Checked again, since only this makes a chat's own types and holds its rules on several
        fields. The first check has the places of what the client wrote, which messages have not.
        """
        with names():
            self._chat = ChatBody.model_validate(said)
