"""The patterns (2N-2):2N, and whether a weight obeys one."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put a layer's name before the message of an error about its weight."""
    try:
        yield
    except (ValueError, TypeError) as error:
        error.args = (f"{name}: {error}",)
        raise


class PatternViolation(ValueError):
    """A block has more nonzeros than its pattern allows; carries `row`, `block` and `nnz`."""

    def __init__(self, row: int, block: int, nnz: int, pattern: Pattern) -> None:
        self.row, self.block, self.nnz = row, block, nnz
        first = block * pattern.total
        super().__init__(
            f"row {row}, inputs {first} to {first + pattern.total - 1} (block {block}) have {nnz} "
            f"nonzeros; {pattern} allows {pattern.keep}: prune the weight to the pattern first"
        )


@dataclass(frozen=True)
class Pattern:
    r"""At most `keep` nonzeros in every `total` consecutive inputs of a row, `keep = total - 2`.

    With `total = 2N`, the sliding windows turn it into `N - 1` windows of 2:4 a block: an expansion
    of `2 - 2/N`, half of whose multiplications a 2:4 unit skips, so that no scheme of 2:4 windows
    can be faster than `N / (N - 1)` times dense.

    Raises
    ------
    ValueError
        For a total that is odd or below 4, or `keep` other than `total - 2`.

    Notes
    -----
    Wanda, SparseGPT, llm-compressor and torchao write zeros:total, so that their 2:8 is 6:8 here.

    Source: the pattern family and the expansion of the paper's sections on the decomposition.

    Examples
    --------
    >>> pattern = Pattern.parse("6:8")
    >>> pattern.expansion, round(pattern.max_speedup, 3), pattern.bytes_ratio(torch.int8)
    (1.5, 1.333, 0.9375)
    """

    keep: int
    total: int

    def __post_init__(self) -> None:
        for name, value in (("keep", self.keep), ("total", self.total)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} is {value!r}; allowed: an int")
        if self.total < 4 or self.total % 2:
            raise ValueError(
                f"the total of {self.keep}:{self.total} is {self.total}; allowed: 4, 6, 8, ..."
            )
        if self.keep != self.total - 2:
            hint = (
                f"did you mean {self.total - 2}:{self.total} (keep:total), "
                f"which is 2:{self.total} when written zeros:total?"
            )
            raise ValueError(
                f"{self.keep}:{self.total} keeps {self.keep} of {self.total}; allowed: keep:total "
                f"with keep = total - 2; {hint}"
            )

    @classmethod
    def parse(cls, text: str | Pattern) -> Pattern:
        """Read `"keep:total"`, such as `"6:8"`; a pattern is returned as it is."""
        if isinstance(text, Pattern):
            return text
        if not isinstance(text, str):
            raise TypeError(f"pattern is {text!r}; allowed: a string keep:total, such as '6:8'")
        parts = text.strip().split(":")
        if len(parts) != 2 or not all(p.isascii() and p.isdigit() and len(p) < 5 for p in parts):
            raise ValueError(f"pattern is {text!r}; allowed: keep:total, such as '6:8'")
        return cls(int(parts[0]), int(parts[1]))

    def __str__(self) -> str:
        return f"{self.keep}:{self.total}"

    @property
    def N(self) -> int:
        """Half the block."""
        return self.total // 2

    @property
    def windows(self) -> int:
        """Windows of 2:4 a block."""
        return self.N - 1

    @property
    def expansion(self) -> float:
        """Columns after sliding by columns before."""
        return 4 * self.windows / self.total

    @property
    def work_ratio(self) -> float:
        """Multiplications on 2:4 hardware by those of the dense weight."""
        return self.expansion / 2

    @property
    def max_speedup(self) -> float:
        """The bound on the speed-up over dense of any scheme of 2:4 windows."""
        return 1 / self.work_ratio

    def bytes_ratio(self, dtype: torch.dtype) -> float:
        """Stored bytes by dense bytes: the values of two slots a window, and 2 bits each."""
        return self.work_ratio * (1 + 0.25 / bytes_of(dtype))

    def blocks(self, inputs: int) -> int:
        """Blocks of a row, the last one padded with zeros."""
        return -(-inputs // self.total)

    def slid_columns(self, inputs: int) -> int:
        """Columns after sliding."""
        return 4 * self.windows * self.blocks(inputs)


@dataclass(frozen=True)
class PatternReport:
    """Whether a weight obeys a pattern, and where it does not first."""

    ok: bool
    bad_blocks: int
    worst_nnz: int
    first_bad: tuple[int, int] | None


def check(weight: Tensor, pattern: str | Pattern) -> PatternReport:
    """Count the blocks of a weight [O, K] that have more nonzeros than the pattern allows.

    Raises
    ------
    TypeError, ValueError
        For what is no real matrix, or NaN or infinity.

    Notes
    -----
    Source: the paper's pattern family, (2N-2):2N.

    Examples
    --------
    >>> check(torch.tensor([[1.0, 0, 2, 3, 0, 4, 5, 6]]), "6:8").ok
    True
    >>> check(torch.ones(2, 16), "6:8")
    PatternReport(ok=False, bad_blocks=4, worst_nnz=8, first_bad=(0, 0))
    """
    pattern = Pattern.parse(pattern)
    counts = nonzeros_of_blocks(weight, pattern)
    first = first_above(counts, pattern.keep)
    worst = int(counts.max()) if counts.numel() else 0
    return PatternReport(first is None, int((counts > pattern.keep).sum()), worst, first)


def require_pattern(weight: Tensor, pattern: Pattern) -> None:
    """Raise `PatternViolation` for the first block with too many nonzeros."""
    refuse_excess(nonzeros_of_blocks(weight, pattern), pattern)


def refuse_excess(counts: Tensor, pattern: Pattern) -> None:
    """Raise `PatternViolation` for the first of the counts [O, G] above the pattern's."""
    first = first_above(counts, pattern.keep)
    if first is not None:
        raise PatternViolation(*first, int(counts[first]), pattern)


def first_above(counts: Tensor, most: int) -> tuple[int, int] | None:
    """Row and block of the first count [O, G] above `most`."""
    bad = counts > most
    if not bad.any():
        return None
    row, block = bad.nonzero()[0].tolist()
    return row, block


def nonzeros_of_blocks(weight: Tensor, pattern: Pattern) -> Tensor:
    """Nonzeros [O, G] of each block of a weight [O, K]."""
    mask = is_nonzero(check_matrix(weight, "weight"))
    blocks: Tensor = pad_columns(mask, pattern.total).unflatten(1, (-1, pattern.total))
    # A product is many times faster than sums over so few entries.
    return (blocks.to(torch.float32) @ blocks.new_ones(pattern.total, dtype=torch.float32)).int()


def check_size(value: int, name: str) -> int:
    """A number of inputs, outputs or tokens as an int; numpy's integers are taken too."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}; allowed: an integer from 1")
    return int(value)


def bytes_of(dtype: torch.dtype) -> int:
    """Bytes of an entry of a type."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {dtype!r}; allowed: a torch.dtype, such as torch.int8")
    return dtype.itemsize


# Bits of scales alone, without sign and zero, and pairs of entries.
_NO_WEIGHTS = (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.bool)


def check_matrix(weight: Tensor, name: str) -> Tensor:
    """Refuse what is no finite matrix; NaN and infinity cannot be told from pruned and kept."""
    if not isinstance(weight, Tensor):
        raise TypeError(f"{name} is a {type(weight).__name__}; allowed: a torch.Tensor")
    if weight.layout != torch.strided or weight.is_meta:
        kind = "a tensor without data" if weight.is_meta else weight.layout
        raise TypeError(f"{name} is {kind}; allowed: an ordinary tensor, torch.strided")
    if weight.dim() != 2 or not weight.shape[1]:
        raise ValueError(f"{name} has the shape {tuple(weight.shape)}; allowed: [outputs, inputs]")
    if weight.dtype.is_complex or weight.dtype in _NO_WEIGHTS:
        raise TypeError(f"{name} is {weight.dtype}; allowed: a real floating or integer type")
    if weight.dtype.is_floating_point:
        wide = weight if weight.dtype.itemsize > 1 else weight.to(torch.float32)
        # Smallest and largest pass NaN on, and take a fifth of the time of looking at each.
        if weight.numel() and not all(map(torch.isfinite, torch.aminmax(wide))):
            raise ValueError(f"{name} holds NaN or infinity; allowed: finite values")
    return weight


def is_nonzero(weight: Tensor) -> Tensor:
    """Where a weight is not zero; -0.0 is zero, for 8-bit floats too."""
    if weight.dtype.is_floating_point and weight.dtype.itemsize == 1:
        return (weight.view(torch.uint8) & 0x7F).bool()
    return weight.bool()


def without_negative_zeros(weight: Tensor) -> Tensor:
    """The same values with -0.0 as 0.0: compressors count the bits of -0.0 as a nonzero."""
    if not weight.dtype.is_floating_point:
        return weight
    if weight.dtype.itemsize > 1:
        return weight + 0.0
    bits = raw(weight)
    return torch.where(is_nonzero(weight), bits, torch.zeros_like(bits)).view(weight.dtype)


def raw(tensor: Tensor) -> Tensor:
    """The bits of a tensor; 8-bit floats lack most operations and must not go through float32."""
    eight_bit_float = tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1
    return tensor.view(torch.uint8) if eight_bit_float else tensor


def pad_columns(matrix: Tensor, multiple: int) -> Tensor:
    """Zero columns up to a multiple."""
    missing = -matrix.shape[1] % multiple
    if not missing:
        return matrix
    zeros = torch.zeros((matrix.shape[0], missing), dtype=raw(matrix).dtype, device=matrix.device)
    return torch.cat([raw(matrix), zeros], 1).view(matrix.dtype)
