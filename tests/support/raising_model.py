"""A model whose module cannot be imported."""

raise RuntimeError("of itself")
