"""The shared byte-level BPE tokenizer, and the token stream that it makes of the corpus.

`python -m models.tokenizer` trains it and writes the training tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from draftloop.model_info import vocabulary_fingerprint
from models import token_file
from models.corpus import Document, load
from models.layout import CACHE_DIR, TOKENIZER_FILE, TRAIN_TOKENS

VOCABULARY = 4096
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
MAX_LENGTH = 2048


def train(texts: Sequence[str]) -> Tokenizer:
    """A lossless byte-level BPE of `VOCABULARY` tokens; `<|endoftext|>` has id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def for_transformers(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer in the form that `AutoTokenizer` loads; it adds no special tokens by itself."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )


def encode(tokenizer: Tokenizer, documents: Sequence[Document], seed: int) -> npt.NDArray[np.int16]:
    """One stream of all documents, each after `<|endoftext|>`, in an order drawn from `seed`."""
    order = np.random.default_rng(seed).permutation(len(documents))
    encodings = tokenizer.encode_batch([documents[index].text for index in order])
    ids = [[END_OF_TEXT_ID, *encoding.ids] for encoding in encodings]
    return np.concatenate([np.asarray(part, dtype=np.int16) for part in ids])


def trained() -> Tokenizer:
    """The tokenizer with which the training tokens were made.

    Raises FileNotFoundError if there is none yet.
    """
    if not TOKENIZER_FILE.exists():
        raise FileNotFoundError(
            f"{TOKENIZER_FILE} is not there: run python -m models.tokenizer first"
        )
    return Tokenizer.from_file(str(TOKENIZER_FILE))


def require_same(folder: Path) -> None:
    """Raises ValueError unless the model in `folder` has the tokenizer of the training tokens.

    With another tokenizer, ids mean different text: a run would train on noise without an error.
    """
    trained()
    if vocabulary_fingerprint(folder) != vocabulary_fingerprint(TOKENIZER_FILE.parent):
        raise ValueError(
            f"the model in {folder} has another tokenizer than {TOKENIZER_FILE}, which the "
            "training tokens are of: train and export a verifier model with this one first"
        )


def main() -> None:
    """Trains on the training files only and writes tokenizer and token stream to the cache."""
    training, _ = load()
    tokenizer = train([document.text for document in training])
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(TOKENIZER_FILE))
    stream = encode(tokenizer, training, seed=0)
    token_file.write(TRAIN_TOKENS, stream)
    size = sum(len(document.text.encode()) for document in training)
    sys.stdout.write(f"{len(stream):,} tokens, {size / len(stream):.3f} bytes a token\n")


if __name__ == "__main__":
    main()
