"""Self-checks of attention's memory against its closed forms."""

import statistics

import numpy
from pandas import DataFrame

from cs336_systems.accounting.attention import plain_bytes_before_backward, plain_peak_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.flash import contender_of
from scripts.checks import Case, Evidence, check
from scripts.checks.attention import name_flash, name_plain
from scripts.views.attention_calls import OURS, with_kernels_for_hopper, without_own
from scripts.views.data import select

WORKSPACE_TOLERANCE = 1.0
"""MiB by which what is left over may differ between cells."""
PEAK_TOLERANCE = 0.05
TERMS = 4
FLASH_GROUP = ["implementation", "compiled_call", "batch_size", "heads", "causal", "precision", "for_hopper"]


@check("{n} numbers; {least:.0f} MiB", "memory is counted on GPUs only")
def workspace_is_constant(attention: DataFrame) -> Evidence:
    """Attention's memory between its passes, and its peak where it is eager, is its closed form and one constant.

    The constant is what libraries keep.
    """
    rows = select(attention, status="ok", precision="fp32")
    kept = [
        (row, row["mean"] - closed_form(row["batch_size"], row["sequence"], row["d"]) / MIB)
        for metric, closed_form in (
            ("memory_before_backward", plain_bytes_before_backward),
            ("peak_memory", plain_peak_bytes),
        )
        for _, row in select(rows, metric=metric).iterrows()
        if metric != "peak_memory" or not row["compiled"]
    ]
    usual = statistics.median(left for _, left in kept) if kept else 0.0
    for row, left in kept:
        found = f"{row['metric']} {left:.2f} MiB more, others {usual:.2f} MiB"
        yield Case(name_plain(row), abs(left - usual) > WORKSPACE_TOLERANCE, found, usual)


@check("{n} cells within {PEAK_TOLERANCE:.0%}; largest difference {most:.1%}", "memory is counted on GPUs only")
def peaks_are_polynomials(attention: DataFrame, flash: DataFrame) -> Evidence:
    """An attention implementation's peak memory is one polynomial of length and head dimension.

    Its terms are constant, sequence, sequence · d and sequence². Its coefficients are fitted; with more cells than
    coefficients no single cell can differ unseen. Ours has two, one of them for the kernels that sum dQ in memory; a
    user's may have any.
    """
    attention = select(attention, metric="peak_memory")
    flash = select(with_kernels_for_hopper(without_own(flash)), metric="peak_memory")
    flash = flash[flash["sequence"] > flash["implementation"].map(lambda name: contender_of(name).other_peak_up_to)]
    # Those for Hopper take 16-bit numbers; of rows of earlier code it is not known which kernels ran.
    flash = flash[flash["told"] | (flash["implementation"] != OURS) | (flash["precision"] == "fp32")]
    groups = [
        *((name_plain, group) for _, group in attention.groupby(["compiled", "batch_size", "precision"])),
        *((name_flash, group) for _, group in flash.groupby(FLASH_GROUP)),
    ]
    for name, group in groups:
        if len(group) <= TERMS:
            continue
        errors = numpy.abs(relative_residuals(group))
        yield from errors.tolist()
        if errors.max() > PEAK_TOLERANCE:
            row = group.iloc[errors.argmax()]
            yield f"{name(row)} or a neighbour: {row['mean']:.2f} MiB, {errors.max():.0%} off the others"


def relative_residuals(rows: DataFrame) -> numpy.ndarray:
    """How far each cell's memory is from the polynomial that fits all of them best, relative to it."""
    length = rows["sequence"].to_numpy(float)
    terms = numpy.stack([numpy.ones(len(rows)), length, length * rows["d"], length**2], axis=1)
    relative = terms / rows["mean"].to_numpy(float)[:, None]
    relative /= numpy.abs(relative).max(axis=0)
    fitted, *_ = numpy.linalg.lstsq(relative, numpy.ones(len(rows)), rcond=None)
    return relative @ fitted - 1
