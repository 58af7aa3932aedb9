"""The package has the handout's name, and asks for its own version as the handout's does."""

import importlib.metadata

__version__ = importlib.metadata.version("cs336-systems")
