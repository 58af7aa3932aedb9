"""How tables write a tensor."""


def describe_tensor(dtype: str, shape: tuple[int, ...]) -> str:
    """A tensor's dtype and shape as text.

    >>> describe_tensor("float32", (4, 128))
    'float32 4×128'
    """
    return f"{dtype} {'×'.join(map(str, shape))}"
