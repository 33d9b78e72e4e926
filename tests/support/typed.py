"""A folder and ports of this machine on which a reader's commands from a page can run."""

from __future__ import annotations

import re
from pathlib import Path

from draftloop.config import DEFAULT_PORTS, bundled_model
from orchestrator.key_file import KeyEntry, hash_of, new_key
from tests.contract.repository import ROOT
from tests.support.certificates import Authority
from tests.support.ports import quiet_port

# A host of a deployment or of this machine, as the pages write them, and a port.
ADDRESS = re.compile(r"(dns:///)?(?:[a-z]+|127\.0\.0\.1|0\.0\.0\.0):(\d{4,5})$")
ANY_PORT = "port = 0\nhttp_port = 0\nverifier_port = 0\ndrafter_port = 0\n"  # settings of a stack
CERTIFIED = ("verifier", "drafter", "orchestrator", "public")


class Desk:
    """A folder with the files that pages name, and a free port for each port that they name."""

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

    def port(self, documented: int) -> int:
        """The free port that stands for one on a page."""
        return self._ports.setdefault(documented, quiet_port())

    def flags(self, words: tuple[str, ...]) -> list[str]:
        """The flags with free ports, and with full names of files in this folder."""
        return [self._flag(word) for word in words]

    def listening(self, role: str, flags: list[str]) -> list[str]:
        """The flags; if they do not say where the role listens, that is added."""
        if "--listen" not in flags:
            flags = [*flags, "--listen", f"127.0.0.1:{self.port(DEFAULT_PORTS[role])}"]
        return [*flags, "--http-listen", ""] if role == "orchestrator" else flags

    def _flag(self, word: str) -> str:
        address = ADDRESS.search(word)
        if address is not None:
            scheme, documented = address.groups()
            host = "dns:///localhost" if scheme else "127.0.0.1"
            return f"{word[: address.start()]}{host}:{self.port(int(documented))}"
        return str(self.folder / word) if (self.folder / word).exists() else word
