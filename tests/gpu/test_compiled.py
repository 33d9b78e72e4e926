"""`--torch-compile` on a GPU."""

from __future__ import annotations

import pytest
import torch

from models.layout import VERIFIER_DIR
from tests.gpu.test_logits import FLOAT32, apart, load, together

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]


@pytest.mark.filterwarnings("ignore")  # the compiler's own warnings
def test_compiled_blocks_compute_the_same() -> None:
    plain, compiled = load(VERIFIER_DIR), load(VERIFIER_DIR, torch_compile=True)
    assert apart(together(compiled), together(plain)) < FLOAT32
    torch.compiler.reset()
