"""Builders of contenders that train on several ranks, which their entries in the experiments name."""
