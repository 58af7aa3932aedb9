"""Contenders of a comparison, described without running them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A contender. Benchmarks, tables, figures, checks and tests read only this entry."""

    name: str
    """Its name in the experiment's rows."""
    title: str
    """Its name in tables and figures."""
    builder: str
    """The function that builds it, as package.module:name; imported only where it is measured."""
    foreign: bool = False
    """Whether it is a third-party library's."""
    own: bool = False
    """Whether it is a user's own, named in the configuration."""
    tried: bool = False
    """Whether it is an experimental variation, measured only on request."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """The devices that it runs on."""
    precisions: tuple[str, ...] = ("fp32", "bf16")
    """The precisions that it supports."""
