"""Closed forms, in plain arithmetic: what a measurement should be, derived before it is taken."""
