"""Self-checks of training with sharded optimizers."""

from collections.abc import Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.optimizer_sharding import fp32_adamw
from cs336_systems.accounting.transformer import parameter_tensors
from cs336_systems.accounting.units import FP32_BYTES, MIB
from scripts.checks import Case, Evidence, check, told
from scripts.views.closed_forms import model_of
from scripts.views.comparison import OWN
from scripts.views.optimizer_sharding import HELD, REST, UNSHARDED, memory, predicted

PADDING = 0.05
"""Of the closed form: what buckets may add so that all ranks' parts are of one size."""
ALIGNMENT = 256
"""Bytes at whose multiples tensors begin in a bucket."""
ON_GPUS = "the allocator counts on GPUs only"
ROUNDING = 1e-4
"""Of a total: samples are kept to five digits."""


def rows(tables: Mapping[str, DataFrame]) -> DataFrame:
    """A row per contender, cell and moment."""
    return memory(tables["optimizer_sharding"])


def name(row: Series) -> str:
    """A contender in a cell, in words."""
    return f"{row['title']}, {row['cell']}"


def name_moment(row: Series) -> str:
    """A contender in a cell at a moment, in words."""
    return f"{name(row)}, {row['moment']}"


@check("{n} counts, {PADDING:.0%} of padding")
def held_is_the_closed_form(rows: DataFrame) -> Evidence:
    """Parameters, gradients and optimizer state on a rank are the closed form, but for padding and whole tensors."""
    for _, row in rows.iterrows():
        shape, vocabulary = model_of(row)
        largest = FP32_BYTES * shape.d_model * max(shape.d_ff, vocabulary) / MIB
        alignment = ALIGNMENT * parameter_tensors(shape) / MIB
        whole = fp32_adamw(shape, vocabulary)
        for part, expected in predicted(row).items():
            sharded = expected * MIB < getattr(whole, part)
            unequal = 2 * largest if sharded and expected else 0.0
            most = (1 + PADDING) * expected + unequal + (alignment if expected else 0)
            wrong = not (1 - ROUNDING) * expected - unequal <= row[part] <= most
            yield Case(name_moment(row), wrong, f"{HELD[part]} {told(row[part], 1)} of {expected:.1f} MiB")


@check("{n} sums")
def state_adds_up(rows: DataFrame) -> Evidence:
    """The ranks' shards make up the whole optimizer state."""
    for _, row in rows[(rows["whole_state"] > 0) & (rows["family"] != OWN)].iterrows():
        state = fp32_adamw(*model_of(row)).optimizer_state / MIB
        copies = row["processes"] if row["contender"] == UNSHARDED else 1
        found = f"{row['whole_state']:.1f} of {copies * state:.1f} MiB"
        yield Case(name(row), abs(row["whole_state"] / (copies * state) - 1) > ROUNDING, found)


@check("{n} moments")
def an_equal_share_is_between_the_ends(rows: DataFrame) -> Evidence:
    """An equal share of the optimizer state lies between the least and the most that a rank holds."""
    for _, row in rows[rows["whole_state"] > 0].iterrows():
        least, most = row["least_state"], row["most_state"]
        wrong = not least * (1 - ROUNDING) <= row["whole_state"] / row["processes"] <= most * (1 + ROUNDING)
        each = f"{least:.1f} to {most:.1f} MiB on each of {row['processes']} ranks"
        yield Case(name_moment(row), wrong, f"{each}, {row['whole_state']:.1f} MiB on all")


@check("{n} moments", ON_GPUS)
def allocator_agrees(rows: DataFrame, optimizer_sharding: DataFrame) -> Evidence:
    """Tensors fit into the allocator's count, that into its peak, and this into the device."""
    device = optimizer_sharding["gpu_memory"].max() / MIB if len(optimizer_sharding) else 0.0
    for _, row in rows[rows["allocated"].notna()].iterrows():
        used, peak = row["allocated"], row["peak"]
        wrong = not (row[REST] >= -ROUNDING * used and peak >= (1 - ROUNDING) * used) or peak > device
        sizes = f"rest {told(row[REST], 1)}, in use {used:.1f}, peak {told(peak, 1)} MiB"
        yield Case(name_moment(row), wrong, sizes)
