"""Predictions of memory and time of a training step, from closed forms, without measuring anything."""
