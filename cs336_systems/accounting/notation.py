"""Notation of tensors in tables."""


def describe_tensor(dtype: str, shape: tuple[int, ...]) -> str:
    """Format a tensor's dtype and shape.

    >>> describe_tensor("float32", (4, 128))
    'float32 4×128'
    """
    return f"{dtype} {'×'.join(map(str, shape))}"
