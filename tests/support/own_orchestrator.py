"""An orchestrator with a test's own settings, using the services of a running stack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import OpenAI

from orchestrator.launcher import Stack
from tests.support.service_process import ServiceProcess
from tests.support.waiting import until


@contextmanager
def own_orchestrator(stack: Stack, folder: Path, template: str, *flags: str) -> Iterator[OpenAI]:
    """OpenAI's client for an orchestrator with this chat template."""
    file, address = folder / "template.jinja", folder / "http"
    file.write_text(template)
    verifier, drafter = (stack.processes[role].address for role in ("verifier", "drafter"))
    settings = [
        "--verifiers", verifier, "--drafters", drafter, "--chat-template", str(file),
        "--http-listen", "127.0.0.1:0", "--http-address-file", str(address), *flags,
    ]  # fmt: skip
    process = ServiceProcess("orchestrator", settings, folder)
    process.start()
    try:
        process.wait_until_ready()
        until(address.exists)
        base = f"http://{address.read_text().strip()}/v1"
        with OpenAI(base_url=base, api_key="none", max_retries=0) as client:
            yield client
    finally:
        process.kill()
