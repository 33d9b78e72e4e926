"""A small tokenizer of Llama 2's kind."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers

LETTERS = "\u2581abcdefghijklmnopqrstuvwxyzé"
MERGES = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("\u2581", "a")]


def save_sentencepiece_tokenizer(folder: Path) -> None:
    """Writes its tokenizer.json; all characters except a few letters are single bytes."""
    special = ["<unk>", "<s>", "</s>"]
    single = [*(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS]
    tokens = [*special, *single, *("".join(pair) for pair in MERGES)]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=MERGES, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
