"""Comparisons of contenders: checks of their results, and interleaved timing."""
