ROWS: int
AMD: int

def isa() -> int: ...
def encode(
    dense: int,
    values: int,
    masks: int,
    rows: int,
    starts: int,
    inputs: int,
    outputs: int,
    tile: int,
    /,
) -> int: ...
def linear(
    x: int,
    values: int,
    masks: int,
    rows: int,
    starts: int,
    bias: int,
    y: int,
    tokens: int,
    inputs: int,
    outputs: int,
    stride: int,
    tile: int,
    threads: int,
    isa: int,
    /,
) -> None: ...
