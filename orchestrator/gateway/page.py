"""The playground: a page of static files, and what it must know of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from draftloop import __version__
from draftloop.speculation import STRATEGIES
from orchestrator.gateway.answers import JsonAnswer
from orchestrator.gateway.gateway import Gateway

FOLDER = Path(__file__).parent / "playground"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asks each time whether it has changed: page and API fit
}


class PlaygroundFiles(StaticFiles):
    """The page may load nothing from elsewhere, run nothing inline, and be framed by nobody."""

    def file_response(self, *said: Any, **named: Any) -> Response:
        """A file, or the word that it has not changed."""
        response = super().file_response(*said, **named)
        response.headers.update(HEADERS)
        return response


def add_playground(app: FastAPI, gateway: Gateway) -> None:
    """`/` leads to `/playground/`, by relative addresses: a prefix before them does no harm."""

    @app.get("/", include_in_schema=False)
    @app.get("/playground", include_in_schema=False)
    async def playground() -> Response:
        return RedirectResponse("playground/")

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        """Browsers ask for it on pages that name none, such as a look at `/openapi.json`."""
        return FileResponse(FOLDER / "icon.svg", headers=HEADERS)

    @app.get("/playground/options", include_in_schema=False)
    async def options(request: Request) -> Response:
        """What the page offers. Raises Unavailable while no verifier is known, Unauthenticated."""
        gateway.require_caller(request.headers)
        return JsonAnswer(_options(gateway))

    app.mount("/playground", PlaygroundFiles(directory=FOLDER, html=True))


def _options(gateway: Gateway) -> dict[str, Any]:
    deployment = gateway.front.deployment
    drafter = deployment.drafter
    return {
        "version": __version__,
        "model": gateway.model_name,
        "draft_model": drafter.model_name if drafter else None,
        "context_length": deployment.verifier.context_length,
        "strategies": STRATEGIES,
        "default_strategy": deployment.settings.default_strategy,
    }
