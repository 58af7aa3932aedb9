"""Declarations of a comparison's contenders, without running them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from cs336_systems.accounting.contenders import PASSES, UPDATE, ClosedForm, RanksCell, at_once, gradients
from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.setting import Scheme, Setting

BUILDERS = "cs336_systems.benchmarks.comparison.builders"
COMMON_MB = 100
"""The bucket size of contenders that are compared at a single size."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A contender. Benchmarks, tables, figures, checks and tests read only this entry."""

    name: str
    """Its name in the experiment's rows."""
    title: str
    """Its name in tables and figures."""
    builder: str
    """The function that builds it, as package.module:name; imported only when it is measured."""
    foreign: bool = False
    """Whether it is a third-party library's."""
    own: bool = False
    """Whether it is a user's own, named in the configuration."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """The devices on which it runs."""
    precisions: tuple[str, ...] = ("fp32", "bf16")
    """The precisions that it supports."""


@dataclass(frozen=True, kw_only=True)
class Declared(Contender):
    """A contender that trains on several ranks, with its signature.

    Its builder is called with a model, this entry, a cell and AdamW's hyperparameters; it returns the wrapped model and
    an optimizer, or raises `Unavailable`. `comparison.builders.own` calls a user's own.
    """

    bucket_mb: int | None = None
    """Its bucket size, or None if it has no buckets or is measured at a single size."""
    scheme: Scheme | None = None
    """The state that ranks share; for a user's contender, the scheme used to estimate its memory."""
    by_block: bool = True
    """Whether FSDP's unit is a block instead of a layer."""
    sends: ClosedForm = lambda cell: ()
    """The messages of a step; none if ranks do not communicate."""
    copies: float = 0.0
    """Maximum number of times that it writes all gradients or weights in a step, in addition to a single rank's
    writes."""
    autocasts: bool = True
    """Whether bf16 means autocast, or bf16 gathered weights."""

    @property
    def key(self) -> str:
        """The contender's key in rows, in one word."""
        return self.name if self.bucket_mb is None else f"{self.name} {self.bucket_mb}"

    @property
    def whole_state(self) -> bool:
        """Whether each rank updates all parameters."""
        return self.scheme in ("alone", "data parallel")

    @property
    def in_verdicts(self) -> bool:
        """Whether it stands for this project in verdicts: ours, and ranks communicate."""
        return self.scheme not in (None, "alone") and not (self.foreign or self.own)

    def after_backward(self, cell: RanksCell) -> bool:
        """Whether all messages follow the backward pass, when nothing else runs."""
        sends = self.sends(cell)
        return bool(sends) and not any(sent.part == PASSES for sent in sends)

    def disturbs(self, cell: RanksCell) -> bool:
        """Whether collectives run next to the passes, and take SMs from them."""
        return any(sent.what and sent.part == PASSES for sent in self.sends(cell))

    def sends_to_peers(self, cell: RanksCell) -> bool:
        """Whether ranks write into each other's memory instead of calling collectives."""
        return any(not sent.what for sent in self.sends(cell))

    def setting(self, cell: RanksCell, *, on_gpu: bool = True) -> Setting:
        """Describe the step of a cell under this contender.

        Raises:
            ValueError: it declares no scheme, in one sentence.
        """
        if self.scheme is None:
            raise ValueError(f"scheme of contender {self.name} is None; allowed: {', '.join(get_args(Scheme))}")
        to_peers = self.sends_to_peers(cell)
        shares_updates = self.scheme in ("sharded optimizer", "ZeRO-2")
        bucket_mb = math.inf if self.sends is at_once else self.bucket_mb or COMMON_MB
        return Setting.of(
            vars(cell),
            ranks=cell.processes,
            scheme=self.scheme,
            by_block=self.by_block,
            bucket_mb=None if to_peers or not self.copies else bucket_mb,
            rebuilds=(self.foreign or self.own) and self.scheme != "FSDP",
            exposed=self.after_backward(cell),
            symmetric=to_peers or (shares_updates and not any(sent.part == UPDATE for sent in self.sends(cell))),
            on_gpu=on_gpu,
        )

    def needed(self, cell: RanksCell, *, on_gpu: bool) -> int:
        """Approximate peak bytes on a rank: in a step, or while the model is being sharded."""
        setting = self.setting(cell, on_gpu=on_gpu)
        use = peak(setting)
        if self.scheme == "FSDP":
            return max(use.total, gradients(cell) + use.parameters)
        # Slots for the other ranks' contributions to a rank's share, and for the means of the other shares.
        slots = 2 * gradients(cell) * (cell.processes - 1) // cell.processes
        return use.total + (slots if self.sends_to_peers(cell) else 0)


def ours(name: str, title: str, **traits: Any) -> Declared:
    """Declare a contender of this project, whose builder has its name unless the traits name another."""
    return Declared(**{"name": name, "title": title, "builder": f"{BUILDERS}.ours:{name}"} | traits)


def pytorchs(name: str, title: str, **traits: Any) -> Declared:
    """Declare a contender of PyTorch, in the same way."""
    return ours(name, title, **{"builder": f"{BUILDERS}.pytorch:{name}", "foreign": True} | traits)


def names_of(contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Their names; a name with several bucket sizes appears once."""
    return tuple(dict.fromkeys(declared.name for declared in contenders))


def contender_settings(cell: Any) -> Iterator[tuple[str, Setting]]:
    """The step of each contender of a cell, by the contender's key."""
    for declared in cell.contenders:
        yield declared.key, declared.setting(cell)
