"""HEAD: whatever can be got may be asked for without its body, as HTTP wants it of every server."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware: the answer to GET, of which only the head is sent.

    Health checks ask so, and Claude Code before it begins.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a copy: the server looks into its own for whether there is to be a body."""

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self._app({**scope, "method": "GET"}, receive, without_body)
        else:
            await self._app(scope, receive, send)
