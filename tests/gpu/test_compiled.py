"""`--torch-compile` on a GPU."""

from __future__ import annotations

import pytest
import torch

from models.layout import VERIFIER_DIR
from tests.gpu.test_logits import FLOAT32, load_model_on, relative_distance, tree_logits

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]


@pytest.mark.filterwarnings("ignore")  # the compiler's own warnings
def test_compiled_blocks_give_the_same_results() -> None:
    plain, compiled = load_model_on(VERIFIER_DIR), load_model_on(VERIFIER_DIR, torch_compile=True)
    assert relative_distance(tree_logits(compiled), tree_logits(plain)) < FLOAT32
    torch.compiler.reset()
