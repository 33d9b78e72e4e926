"""What a reader has at hand who types the commands of a page, on ports of this machine."""

from __future__ import annotations

import re
from pathlib import Path

from draftloop.config import DEFAULT_PORTS, bundled_model
from orchestrator.key_file import KeyEntry, hash_of, new_key
from tests.contract.repository import ROOT
from tests.support.certificates import Authority
from tests.support.ports import quiet_port

# Hosts of deployments and of this machine, as the pages write them, and a port.
ADDRESS = re.compile(r"(dns:///)?(?:[a-z]+|127\.0\.0\.1|0\.0\.0\.0):(\d{4,5})$")
ANY_PORT = "port = 0\nhttp_port = 0\nverifier_port = 0\ndrafter_port = 0\n"  # of a stack
CERTIFIED = ("verifier", "drafter", "orchestrator", "public")


class Desk:
    """A folder with the files that pages name, and a free port for each that they name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: dict[int, int] = {}
        (folder / "models").symlink_to(ROOT / "models")
        (folder / "path" / "to").mkdir(parents=True)
        for name in ("large", "small"):
            (folder / "path" / "to" / name).symlink_to(bundled_model("drafter"))
        authority = Authority(folder, "ca")
        for name in CERTIFIED:
            authority.pair(name)
        entry = KeyEntry(name="alice", sha256=hash_of(new_key()), tenant="team-a")
        (folder / "keys.toml").write_text(entry.toml())

    def port(self, written: int) -> int:
        """The one that stands for a written one."""
        return self._ports.setdefault(written, quiet_port())

    def flags(self, words: tuple[str, ...]) -> list[str]:
        """The same flags with these ports, and with files of this folder by their full names."""
        return [self._flag(word) for word in words]

    def listening(self, role: str, flags: list[str]) -> list[str]:
        """The flags, and where the role listens if they do not say so."""
        if "--listen" not in flags:
            flags = [*flags, "--listen", f"127.0.0.1:{self.port(DEFAULT_PORTS[role])}"]
        return [*flags, "--http-listen", ""] if role == "orchestrator" else flags

    def _flag(self, word: str) -> str:
        address = ADDRESS.search(word)
        if address is not None:
            scheme, written = address.groups()
            host = "dns:///localhost" if scheme else "127.0.0.1"
            return f"{word[: address.start()]}{host}:{self.port(int(written))}"
        return str(self.folder / word) if (self.folder / word).exists() else word
