"""A proxy that sends pages slowly, so that browsers paint parts of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx

BETWEEN_LINES_S = 0.04  # several frames


class Handler(BaseHTTPRequestHandler):
    """Relays requests; pages are sent line by line, so that no word is split."""

    protocol_version = "HTTP/1.1"
    base: ClassVar[str]

    def do_GET(self) -> None:
        answer = httpx.get(self.base + self.path, follow_redirects=False)
        body, kind = answer.content, answer.headers.get("content-type", "")
        self.send_response(answer.status_code)
        for name in ("content-type", "location"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name].removeprefix(self.base))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        for piece in body.splitlines(keepends=True) if kind.startswith("text/html") else [body]:
            self.wfile.write(piece)
            self.wfile.flush()
            time.sleep(BETWEEN_LINES_S if piece is not body else 0)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def slow_pages(base: str) -> Iterator[str]:
    """The address of a slow proxy for the server at `base`."""
    handler = type("HandlerOfBase", (Handler,), {"base": base})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
