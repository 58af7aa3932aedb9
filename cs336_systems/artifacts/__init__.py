"""Traces and memory snapshots of single steps, to open in Perfetto or memory_viz."""
