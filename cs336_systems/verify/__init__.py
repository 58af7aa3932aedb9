"""Verdicts on implementations of anybody's: what the handout asks, and what code in use meets beyond it.

The code under test runs in processes of its own, which get tensors and return tensors. Right results, tolerances, cases
and verdicts are on this side, so that nothing that code under test prints, patches, writes or ends can turn a verdict.
"""
