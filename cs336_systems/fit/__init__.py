"""Predictions of memory and time of a training step, without measuring anything."""
