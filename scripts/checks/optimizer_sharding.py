"""Self-checks of training with sharded optimizers."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.optimizer_sharding import fp32_adamw
from cs336_systems.accounting.transformer import parameter_tensors
from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.sizes import parse_size
from scripts.checks import Check, conclude, told
from scripts.views.comparison import OWN
from scripts.views.optimizer_sharding import HELD, REST, UNSHARDED, memory, peaks, predicted

PADDING = 0.05
"""Of the closed form: what buckets may add so that all ranks' parts are of one size."""
ALIGNMENT = 256
"""Bytes at whose multiples tensors begin in a bucket."""
PEAK_TOLERANCE = 0.05
"""Of the closed form: it leaves out gradients that travel or wait for their bucket, workspaces and padding."""
ON_GPUS = "the allocator counts on GPUs only"
ROUNDING = 1e-4
"""Of a total: samples are kept to five digits."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    rows = memory(tables["optimizer_sharding"])
    yield held_is_the_closed_form(rows)
    yield state_adds_up(rows)
    yield an_equal_share_is_between_the_ends(rows)
    yield allocator_agrees(rows, tables["optimizer_sharding"])
    yield peak_is_the_closed_form(rows)


def name(row: Series) -> str:
    """A contender in a cell, in words."""
    return f"{row['title']}, {row['cell']}"


def held_is_the_closed_form(rows: DataFrame) -> Check:
    """Ranks hold their share of what is sharded, but for whole tensors, and all of the rest, but for padding."""
    check = "parameters, gradients and optimizer state on a rank are the closed form, but for padding and whole tensors"
    complaints, examined = [], 0
    for _, row in rows.iterrows():
        shape = parse_size(row["size"])
        largest = FP32_BYTES * shape.d_model * max(shape.d_ff, int(row["vocab_size"])) / MIB
        alignment = ALIGNMENT * parameter_tensors(shape) / MIB
        whole = fp32_adamw(shape, int(row["vocab_size"]))
        for part, expected in predicted(row).items():
            examined += 1
            sharded = expected * MIB < getattr(whole, part)
            unequal = 2 * largest if sharded and expected else 0.0
            most = (1 + PADDING) * expected + unequal + (alignment if expected else 0)
            if not (1 - ROUNDING) * expected - unequal <= row[part] <= most:
                complaints.append(
                    f"{name(row)}, {row['moment']}: {HELD[part]} {told(row[part], 1)} of {expected:.1f} MiB"
                )
    return conclude(check, complaints, examined, f"{examined} counts, {PADDING:.0%} of padding")


def state_adds_up(rows: DataFrame) -> Check:
    """Ranks that shard have all of the optimizer state together, once."""
    check = "the ranks' shards make up the whole optimizer state"
    complaints, examined = [], 0
    for _, row in rows[(rows["whole_state"] > 0) & (rows["family"] != OWN)].iterrows():
        state = fp32_adamw(parse_size(row["size"]), int(row["vocab_size"])).optimizer_state / MIB
        copies = row["processes"] if row["contender"] == UNSHARDED else 1
        examined += 1
        if abs(row["whole_state"] / (copies * state) - 1) > ROUNDING:
            complaints.append(f"{name(row)}: {row['whole_state']:.1f} of {copies * state:.1f} MiB")
    return conclude(check, complaints, examined, f"{examined} sums")


def an_equal_share_is_between_the_ends(rows: DataFrame) -> Check:
    """The rank with most of the state has an equal share of it or more, and the one with least has that or less."""
    check = "an equal share of the optimizer state lies between the least and the most that a rank holds"
    found = rows[rows["whole_state"] > 0]
    complaints = [
        f"{name(row)}, {row['moment']}: {row['least_state']:.1f} to {row['most_state']:.1f} MiB on each of "
        f"{row['processes']} ranks, {row['whole_state']:.1f} MiB on all"
        for _, row in found.iterrows()
        if not row["least_state"] * (1 - ROUNDING)
        <= row["whole_state"] / row["processes"]
        <= row["most_state"] * (1 + ROUNDING)
    ]
    return conclude(check, complaints, len(found), f"{len(found)} moments")


def allocator_agrees(rows: DataFrame, table: DataFrame) -> Check:
    """Tensors are within what the allocator has in use, that within its peak, and this within the device."""
    check = "tensors fit into the allocator's count, that into its peak, and this into the device"
    device = table["gpu_memory"].max() / MIB if len(table) else 0.0
    counted = rows[rows["allocated"].notna()]
    complaints = [
        f"{name(row)}, {row['moment']}: rest {told(row[REST], 1)}, in use {row['allocated']:.1f}, "
        f"peak {told(row['peak'], 1)} MiB"
        for _, row in counted.iterrows()
        if not (row[REST] >= -ROUNDING * row["allocated"] and row["peak"] >= (1 - ROUNDING) * row["allocated"])
        or row["peak"] > device
    ]
    return conclude(check, complaints, len(counted), f"{len(counted)} moments" if len(counted) else ON_GPUS)


def peak_is_the_closed_form(rows: DataFrame) -> Check:
    """The peak of our contenders is near the closed form."""
    check = "the peak memory of a step with a sharded optimizer is that of the closed form"
    found = peaks(rows).dropna(subset=["peak", "predicted_peak"])
    errors = [(row, row["peak"] / row["predicted_peak"] - 1) for _, row in found.iterrows()]
    complaints = [
        f"{name(row)}: {row['peak']:.0f} MiB, {error:+.1%} from the closed form"
        for row, error in errors
        if abs(error) > PEAK_TOLERANCE
    ]
    worst = max((abs(error) for _, error in errors), default=0.0)
    summary = f"{len(found)} steps within {PEAK_TOLERANCE:.0%}; largest difference {worst:.1%}"
    return conclude(check, complaints, len(found), summary if len(found) else ON_GPUS)
