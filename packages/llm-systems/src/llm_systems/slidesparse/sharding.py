"""Tensor parallelism: which pieces of a weight still obey its pattern."""

from __future__ import annotations

from .patterns import Pattern


def check_shard(name: str, inputs: int, shard: int, pattern: Pattern) -> None:
    """Refuse a split of the inputs that cuts through blocks; a split of the outputs is always good.

    Parameters
    ----------
    name
        The layer's, for the message.
    inputs, shard
        Inputs of the whole layer and of one piece.

    Raises
    ------
    ValueError
        With the numbers of pieces and the patterns that would do.

    Examples
    --------
    >>> check_shard("down_proj", 1536, 96, Pattern.parse("6:8"))
    """
    if shard == inputs or not shard % pattern.total:
        return
    pieces = inputs // shard
    sizes = [
        n for n in range(1, 65) if not inputs % n and (n == 1 or not inputs // n % pattern.total)
    ]
    kinds = [f"{t - 2}:{t}" for t in range(4, 17, 2) if not shard % t]
    patterns = f", or the pattern {' or '.join(kinds)}" if kinds else ""
    raise ValueError(
        f"{name} has {inputs} inputs in {pieces} pieces of {shard}, no multiple of "
        f"{pattern.total} ({pattern}): use a tensor_parallel_size in {sizes}{patterns}"
    )
