"""The playground: a page of static files, and what it needs to know about the server."""

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
    "Cache-Control": "no-cache",  # revalidated each time, so that page and API match
}


class PlaygroundFiles(StaticFiles):
    """Static files; the page may load nothing from elsewhere, run nothing inline, not be framed."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """The file, or the answer that it has not changed, with the headers above."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def add_playground(app: FastAPI, gateway: Gateway) -> None:
    """Adds the routes. `/` redirects to `playground/`, relative, so that a path prefix works."""

    @app.get("/", include_in_schema=False)
    @app.get("/playground", include_in_schema=False)
    async def playground() -> Response:
        return RedirectResponse("playground/")

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        """The icon, which browsers request for pages that name none, such as `/openapi.json`."""
        return FileResponse(FOLDER / "icon.svg", headers=HEADERS)

    @app.get("/playground/options", include_in_schema=False)
    async def options(request: Request) -> Response:
        """What the page offers. Raises Unauthenticated; Unavailable while no verifier is known."""
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
