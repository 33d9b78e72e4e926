"""The bundled models. They come with a clone of the repository, not with the installed package."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "models"
ONLY_IN_A_CLONE = (
    "the bundled models are only in a clone of the repository: run it there, or give the folder of "
    "a Hugging Face model"
)


def is_missing_bundled_model(folder: Path) -> bool:
    """Whether `folder` would be a bundled model, but does not exist in this installation."""
    return folder.parent == FOLDER and not folder.exists()
