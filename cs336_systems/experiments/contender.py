"""What is compared with each other in an experiment: a contender, by what is known of it without running it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One that takes part. Benchmarks, tables, figures, checks and tests know it by this entry alone."""

    name: str
    """Its name in the experiment's rows."""
    title: str
    """What readers call it."""
    builder: str
    """What makes it, as package.module:name; imported only where it is measured."""
    foreign: bool = False
    """Whether it is a library's."""
    own: bool = False
    """Whether it is a user's, named in the configuration."""
    tried: bool = False
    """Whether it is a variation, measured only where that is asked for."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """The devices that it runs on."""
    precisions: tuple[str, ...] = ("fp32", "bf16")
    """The precisions that it takes."""
