"""Wrappers take turns at one training: the parts of the experiment `data_parallel`."""
