"""Verdicts on anyone's implementations: the handout's requirements, and cases beyond it that occur in practice.

The code under test runs in separate processes, which receive and return tensors. Reference results, tolerances, cases
and verdicts are on this side, so nothing that code under test prints, patches, writes or ends can change a verdict.
"""
