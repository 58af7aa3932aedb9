"""Closed forms in plain arithmetic: predictions of measurements."""
