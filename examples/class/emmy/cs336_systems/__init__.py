"""A package with the handout's name, which looks up its own version as the handout's package does."""

import importlib.metadata

__version__ = importlib.metadata.version("cs336-systems")
