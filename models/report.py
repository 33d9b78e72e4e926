"""Progress reports of a run."""

from __future__ import annotations

import time

from tqdm import tqdm

from models import run_log
from models.checkpoint import Checkpoint
from models.schedule import Phase
from models.setting import Setting

SECONDS_BETWEEN_SAVES = 180.0


class Report:
    """Shows progress on the terminal, writes lines of JSON, and saves every few minutes."""

    def __init__(self, setting: Setting, state: Checkpoint) -> None:
        self.setting, self.state = setting, state
        self.began = time.monotonic() - state.seconds
        self.saved = time.monotonic()
        self.is_compiling = True
        self.log = setting.file.with_suffix(".jsonl")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        run_log.truncate_after(self.log, state.tokens)
        total = setting.schedule.tokens
        self.bar = tqdm(
            total=total, initial=state.tokens, unit="tok", mininterval=10, smoothing=0.1
        )

    def step(self, loss: float, phase: Phase, steps: int = 1) -> None:
        """Records finished steps and their mean loss."""
        now = time.monotonic()
        passed = now - self.began
        if self.is_compiling:
            self.state.compiling += passed - self.state.seconds
            self.is_compiling = False
        self.state.seconds = passed
        self.bar.set_postfix_str(f"loss {loss:.3f}, {phase.layers} layers", refresh=False)
        self.bar.update(steps * phase.step_tokens)
        record = {
            "tokens": self.state.tokens,
            "loss": loss,
            "seconds": round(self.state.seconds, 1),
        }
        run_log.add(self.log, record)
        if now - self.saved > SECONDS_BETWEEN_SAVES:
            self.state.save(self.setting.file)
            self.saved = now
