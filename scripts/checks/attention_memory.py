"""The self-check of attention's peak memory across lengths and head dimensions."""

import numpy
from pandas import DataFrame

from cs336_systems.experiments.flash import contender_of
from scripts.checks import Case, Cases, check, name_row
from scripts.views.attention_calls import OURS, with_kernels_for_hopper, without_own
from scripts.views.data import select

PEAK_TOLERANCE = 0.05
TERMS = 4
FLASH_GROUP = ["implementation", "compiled_call", "batch_size", "heads", "causal", "precision", "for_hopper"]
ON_GPUS = "needs memory counted on a GPU for more than {TERMS} cells of a kind"


@check("{n} cell{s} within {PEAK_TOLERANCE:.0%}; largest difference {most:.1%}", ON_GPUS)
def peaks_are_polynomials(attention: DataFrame, flash: DataFrame) -> Cases:
    """An attention implementation's peak memory is a single polynomial in length and head dimension.

    Its terms are constant, sequence, sequence · d and sequence². Its coefficients are fitted; with more cells than
    coefficients no single cell can differ unnoticed. Ours has two, one of them for the kernels that sum dQ in memory; a
    user's implementation may have any.
    """
    attention = select(attention, metric="peak_memory")
    flash = select(with_kernels_for_hopper(without_own(flash)), metric="peak_memory")
    flash = flash[flash["sequence"] > flash["implementation"].map(lambda name: contender_of(name).other_peak_up_to)]
    # The kernels for Hopper take 16-bit numbers; for rows of earlier code, the kernels that ran are unknown.
    flash = flash[flash["recorded"] | (flash["implementation"] != OURS) | (flash["precision"] == "fp32")]
    groups = [
        *(("attention", group) for _, group in attention.groupby(["compiled", "batch_size", "precision"])),
        *(("flash", group) for _, group in flash.groupby(FLASH_GROUP)),
    ]
    for name, group in groups:
        if len(group) > TERMS:
            for (_, row), error in zip(group.iterrows(), numpy.abs(relative_residuals(group)), strict=True):
                detail = f"{row['mean']:.2f} MiB, {error:.0%} off the others"
                yield Case(name_row(name, row), error > PEAK_TOLERANCE, detail, float(error))


def relative_residuals(rows: DataFrame) -> numpy.ndarray:
    """Relative distance of each cell's memory from the polynomial that fits all of them best."""
    length = rows["sequence"].to_numpy(float)
    terms = numpy.stack([numpy.ones(len(rows)), length, length * rows["d"], length**2], axis=1)
    relative = terms / rows["mean"].to_numpy(float)[:, None]
    relative /= numpy.abs(relative).max(axis=0)
    fitted, *_ = numpy.linalg.lstsq(relative, numpy.ones(len(rows)), rcond=None)
    return relative @ fitted - 1
