"""Text that the verifier model writes itself, for distilling the draft model.

`python -m models.sample --tokens 1000000` continues passages of the training files at temperature
0.7 and, if `models.revise` was run, second versions. After a kill, the same command continues. In
use, a draft model meets the target's own text, not the corpus (on-policy distillation: DistillSpec,
arXiv 2310.08461).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from tqdm import tqdm
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from draftloop.model_info import model_fingerprint
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from models import token_file
from models.evaluate import SAMPLING_TEMPERATURE
from models.layout import REVISED_TOKENS, SAMPLED_DIR, TRAIN_TOKENS, VERIFIER_DIR
from models.team import end_with_parent
from models.tokenizer import END_OF_TEXT_ID, require_same

WRITTEN = 256  # tokens generated per window
PROMPT = 256  # tokens of training text at the beginning of a window
# Or tokens of a record of `models.revise`, up to within its second version.
REVISED_PROMPT = 768
ROWS = 64  # windows per batch
AT_ONCE = 32  # batches at once on a GPU, with 20 GB of keys and values
# One of this many batches continues second versions.
EVERY = 4


def prompts(
    stream: npt.NDArray[np.int16], revised: npt.NDArray[np.int16] | None, batch: int
) -> Tensor:
    """Prompts [ROWS, PROMPT or REVISED_PROMPT] of batch number `batch`: a pure function."""
    draw = np.random.default_rng((1, batch))
    if revised is None or batch % EVERY:
        starts, length = draw.integers(0, len(stream) - PROMPT, ROWS), PROMPT
    else:
        step = REVISED_PROMPT + WRITTEN
        starts = draw.choice(np.arange(0, len(revised) - step, step), ROWS)
        stream, length = revised, REVISED_PROMPT
    rows = np.stack([stream[start : start + length] for start in starts])
    return torch.from_numpy(rows.astype(np.int64))


def file_of(batch: int) -> Path:
    """File of batch number `batch`."""
    return sampled_dir() / f"{batch:05d}.npy"


def sampled_dir() -> Path:
    """Folder for text of the verifier model that is shipped now, since others' text differs."""
    return SAMPLED_DIR / model_fingerprint(VERIFIER_DIR)


def sampled_stream() -> npt.NDArray[np.int16]:
    """All text that this verifier model has written, as one stream.

    Raises FileNotFoundError if it has written nothing yet.
    """
    files = sorted(sampled_dir().glob("*.npy"))
    if not files:
        raise FileNotFoundError(
            f"{VERIFIER_DIR}: this model has written nothing yet: run python -m models.sample first"
        )
    return np.concatenate([np.load(file).reshape(-1) for file in files])


def continued(model: LanguageModel, rows: Tensor) -> Tensor:
    """[ROWS, length + WRITTEN]: the rows with the model's continuations.

    After an end of text, all further tokens are ends of text.
    """
    slots = [model.acquire() for _ in rows]
    written, ended = rows, torch.zeros(len(rows), dtype=torch.bool)
    try:
        # One by one: the logits of all prompts at once would take gigabytes.
        logits = [
            model.forward([Forward(model, slot, row, logits_from=len(row) - 1)])[0]
            for slot, row in zip(slots, rows.tolist(), strict=True)
        ]
        for _ in range(WRITTEN):
            laws = (torch.cat(logits) / SAMPLING_TEMPERATURE).softmax(-1)
            tokens = torch.multinomial(laws, 1).masked_fill(ended[:, None], END_OF_TEXT_ID)
            written = torch.cat([written, tokens], 1)
            ended |= tokens[:, 0] == END_OF_TEXT_ID
            wishes = zip(slots, tokens.tolist(), strict=True)
            logits = model.forward([Forward(model, slot, token) for slot, token in wishes])
    finally:
        for slot in slots:
            model.cache.release(slot)
    return written


def continued_at_once(network: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """Like `continued`, but with transformers' own loop, which suits a GPU and many rows."""
    written: Tensor = network.generate(
        rows, attention_mask=torch.ones_like(rows), max_new_tokens=WRITTEN,
        do_sample=True, temperature=SAMPLING_TEMPERATURE, top_k=0,
    )  # fmt: skip
    missing = rows.shape[1] + WRITTEN - written.shape[1]  # if all rows ended earlier
    return torch.nn.functional.pad(written, (0, missing), value=END_OF_TEXT_ID)


@torch.inference_mode()
def sample_at_once(device: str, batches: int) -> None:
    """Samples the missing batches on a GPU, many at once."""
    network: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(
        VERIFIER_DIR, dtype=torch.bfloat16
    ).to(device)
    stream, revised = _texts()
    missing = [n for n in range(batches) if not file_of(n).exists()]
    batches_of_kind = [[n for n in missing if bool(n % EVERY) == plain] for plain in (True, False)]
    parts = [
        kind[at : at + AT_ONCE] for kind in batches_of_kind for at in range(0, len(kind), AT_ONCE)
    ]
    parts.sort()  # so that a run that is stopped leaves a mixture too
    for part in tqdm(parts, desc="sampling"):
        torch.manual_seed(part[0])
        rows = torch.cat([prompts(stream, revised, number) for number in part])
        written = continued_at_once(network, rows.to(device)).cpu()
        for number, batch in zip(part, written.split(ROWS), strict=True):
            _keep(number, batch)


def work(rank: int, workers: int, batches: int) -> None:
    """Samples every `workers`-th missing batch, with the model as it is served."""
    end_with_parent()
    torch.set_grad_enabled(False)
    longest = REVISED_PROMPT + WRITTEN + 1
    options = ModelOptions(
        folder=VERIFIER_DIR, dtype="bfloat16", max_sessions=ROWS, context_length=longest, threads=1
    )
    model = LanguageModel(options)
    stream, revised = _texts()
    missing = [n for n in range(rank, batches, workers) if not file_of(n).exists()]
    for number in tqdm(missing, desc=f"sampling {rank}", position=rank, mininterval=10):
        torch.manual_seed(number)
        _keep(number, continued(model, prompts(stream, revised, number)))


def _texts() -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16] | None]:
    revised = np.load(REVISED_TOKENS) if REVISED_TOKENS.exists() else None
    return token_file.read(TRAIN_TOKENS, by="models.tokenizer"), revised


def _keep(number: int, written: Tensor) -> None:
    token_file.write(file_of(number), written.numpy().astype(np.int16))


def main() -> None:
    """Parses the command line and samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    require_same(VERIFIER_DIR)
    sampled_dir().mkdir(parents=True, exist_ok=True)
    batches = -(-options.tokens // (ROWS * (PROMPT + WRITTEN)))
    if options.device == "cpu":
        spawn(work, args=(options.workers, batches), nprocs=options.workers)
    else:
        sample_at_once(options.device, batches)


if __name__ == "__main__":
    main()
