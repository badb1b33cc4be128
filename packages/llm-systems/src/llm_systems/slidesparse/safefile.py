"""Safetensors files read and rewritten one tensor at a time.

The new file has the header of the old one, so that tensors go from one to the other in the order of
their bytes, and no more than one is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its name, type as safetensors spells it, shape, and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def entries(path: Path) -> tuple[bytes, list[Entry]]:
    """The header of a file, length included, and its tensors in the order of their bytes.

    Raises
    ------
    ValueError
        For what is no sound safetensors file.
    """
    try:
        # The library checks lengths, offsets and shapes.
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from None
    with path.open("rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
    found = []
    for name, item in json.loads(header).items():
        if name != "__metadata__":
            start, end = item["data_offsets"]
            found.append(Entry(name, item["dtype"], tuple(item["shape"]), start, end))
    return length + header, sorted(found, key=lambda entry: entry.start)


def read(path: Path, header: bytes, entry: Entry) -> Tensor:
    """One tensor of a file."""
    with path.open("rb") as file:
        file.seek(len(header) + entry.start)
        data = bytearray(file.read(entry.end - entry.start))
    return torch.frombuffer(data, dtype=DTYPES[entry.dtype]).view(entry.shape)


def rewrite(
    source: Path, target: Path, change: Callable[[Entry, Callable[[], Tensor]], Tensor | None]
) -> None:
    """Copy a file with some tensors changed.

    Parameters
    ----------
    source, target
        The files.
    change
        Called for every tensor with a function that reads it; returns a tensor of the same shape
        and type, or None to copy it as it is.
    """
    header, found = entries(source)
    with source.open("rb") as old, target.open("wb") as new:
        new.write(header)
        for entry in found:
            changed = change(entry, lambda entry=entry: read(source, header, entry))  # type: ignore[misc]
            if changed is not None:
                new.write(changed.contiguous().view(torch.uint8).numpy().data)
                continue
            old.seek(len(header) + entry.start)
            left = entry.end - entry.start
            while left:
                data = old.read(min(left, _CHUNK))
                new.write(data)
                left -= len(data)
