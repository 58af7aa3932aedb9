"""The first assignment's package."""
