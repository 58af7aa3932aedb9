"""The model shapes of the experiments, by name."""

import re
from dataclasses import asdict, dataclass, fields

LONGEST_SHOWN = 120
"""Maximum number of quoted characters of a refused size."""
MOST, MOST_LAYERS = 1_000_000, 10_000
"""The largest numbers in a shape, and of blocks, since closed forms visit blocks one by one."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The four numbers that determine a Transformer's size.

    Raises:
        ValueError: a number that is out of range, or a num_heads that does not divide d_model into heads of even width.
    """

    d_model: int
    """Width of the residual stream."""
    d_ff: int
    """Inner width of the SwiGLU feed-forward network."""
    num_layers: int
    """Number of Transformer blocks."""
    num_heads: int
    """Attention heads per block."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            most = MOST_LAYERS if name == "num_layers" else MOST
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}; allowed: whole numbers from 1 to {most}")
        if self.d_model % self.num_heads or (self.d_model // self.num_heads) % 2:
            raise ValueError(
                f"num_heads is {self.num_heads}, which does not divide d_model {self.d_model} into heads of even "
                "width (rotary embeddings rotate pairs of features)"
            )


def _shape(d_model: int, d_ff: int, num_layers: int, num_heads: int) -> ModelShape:
    return ModelShape(d_model=d_model, d_ff=d_ff, num_layers=num_layers, num_heads=num_heads)


SIZES = {
    # The smoke scale: seconds on two CPU cores.
    "nano": _shape(64, 256, 2, 2),
    "micro": _shape(128, 512, 4, 4),
    "mini": _shape(256, 1024, 6, 8),
    # The handout's sizes (2025 edition; its 2.7B is the 2026 edition's "xl"; 10B is the 2026 edition's).
    "small": _shape(768, 3072, 12, 12),
    "medium": _shape(1024, 4096, 24, 16),
    "large": _shape(1280, 5120, 36, 20),
    "xl": _shape(1600, 6400, 48, 25),
    "2.7B": _shape(2560, 10240, 32, 32),
    "10B": _shape(4608, 12288, 50, 36),
}

SPEC = "NAME:" + ",".join(f"{field.name}=N" for field in fields(ModelShape))


def parse_size(size: str) -> ModelShape:
    """Return the shape of a size: a name in `SIZES`, or a custom shape in the format of `SPEC`.

    >>> parse_size("mine:d_model=512,d_ff=2048,num_layers=8,num_heads=8").d_model
    512

    Raises:
        ValueError: an unknown name, a malformed specification, a name that is taken or not allowed in a file name, or
            an impossible shape.
    """
    if size in SIZES:
        return SIZES[size]
    name, _, numbers = size.partition(":")
    pairs = dict(pair.partition("=")[::2] for pair in numbers.split(","))
    whole = all(re.fullmatch(r"-?\d{1,18}", number) for number in pairs.values())
    if not whole or set(pairs) != {field.name for field in fields(ModelShape)}:
        shown = size if len(size) <= LONGEST_SHOWN else f"{size[:LONGEST_SHOWN]}..."
        raise ValueError(f"size is {shown!r}; allowed: {', '.join(SIZES)}, or a shape of your own as {SPEC}")
    if numbers.count("=") > len(pairs):
        raise ValueError(f"size is {size!r}; allowed: each number once, as in {SPEC}")
    check_own_name(name)
    try:
        return ModelShape(**{key: int(value) for key, value in pairs.items()})
    except ValueError as error:
        raise ValueError(f"size {name!r}: {error}") from None


def check_own_name(name: str) -> None:
    """Check the name of a custom shape, which becomes part of file names.

    Raises:
        ValueError: a name that is taken, or has characters that are not allowed.
    """
    if name in SIZES:
        raise ValueError(f"size name {name!r} is taken; allowed: any except {', '.join(SIZES)}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"size name is {name!r}; allowed: letters, digits, and '.', '_', '-' not at the start")


def format_size(name: str, shape: ModelShape) -> str:
    """The specification of a size in the format of `parse_size`."""
    return f"{name}:" + ",".join(f"{key}={value}" for key, value in asdict(shape).items())


def size_name(size: str) -> str:
    """Short name of a size: the part before the colon."""
    return size.partition(":")[0]
