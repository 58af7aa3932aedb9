"""Self-checks of sharded training."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import adamw_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.sizes import parse_size
from scripts.checks import Check, conclude, outside
from scripts.checks.contenders import ON_GPUS
from scripts.checks.data_parallel import ROUNDING
from scripts.views.comparison import contenders, series
from scripts.views.data import measured_gpu, select
from scripts.views.fsdp import SERIES, SHARDED, forward_pass, sharded, whole_weights

DIGITS = 1e-4
"""Of the longest of some times: what the digits kept of them may make of the others."""
WORKSPACES_MIB = 512
"""What libraries may keep between steps, besides what belongs to the weights."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    table = tables["fsdp"]
    rows = contenders(FullyShardedTraining, table)
    yield nothing_beats_the_passes(rows)
    yield weights_arrive_before_they_are_used(table, rows)
    yield kept_is_the_closed_form(rows)
    yield peaks_are_possible(rows)


def name_contender(row: Series) -> str:
    """A contender in a cell, in words."""
    return f"{row['contender']}, {row['cell']}"


def nothing_beats_the_passes(rows: DataFrame) -> Check:
    """No fp32 step is shorter than forward and backward pass without communication.

    In bf16 autocast casts what sharded training does not.
    """
    check = "no fp32 training step, sharded or not, is shorter than the passes without communication"
    fp32 = select(rows, precision="fp32")
    floors = select(fp32, contender=FLOOR).assign(passes=lambda floor: floor["p20"] - floor["optimizer"])
    others = fp32[fp32["contender"] != FLOOR].join(floors.set_index("cell")["passes"], on="cell", how="inner")
    if not measured_gpu({"": rows}):
        return conclude(check, [], 0, "judged on GPUs only: on a CPU other programs may hold a floor up for longer")
    complaints = [
        f"{name_contender(row)}: p80 {row['p80']:.2f} ms, passes {row['passes']:.2f} ms"
        for _, row in others[others["p80"] < (1 - ROUNDING) * others["passes"]].iterrows()
    ]
    return conclude(check, complaints, len(others), f"{len(others)} contenders, less {ROUNDING:.0%}")


def weights_arrive_before_they_are_used(table: DataFrame, rows: DataFrame) -> Check:
    """In a profiled forward pass each unit begins when its all-gather has ended and the device is ready."""
    check = "no unit's work begins before its weights are there"
    complaints, examined = [], 0
    for _, row in rows.iterrows():
        units = forward_pass(table, row)
        known = max(len(series(FullyShardedTraining, table, row, metric)) for metric in SERIES)
        if known > len(units):
            complaints.append(f"{name_contender(row)}: not all times of {known} units are there")
        examined += known
        slack = DIGITS * units["begins"].max()
        early = units[units["begins"] < units[["gather_ends", "needed"]].max(axis=1) - slack]
        complaints += [f"{name_contender(row)}: unit {index} of {len(units)}" for index in early.index[:1]]
    return conclude(check, complaints, examined, f"{examined} units" if examined else ON_GPUS)


def kept_is_the_closed_form(rows: DataFrame) -> Check:
    """Weights and moments take what the closed forms say, between steps."""
    check = "memory between the steps of sharded training is the closed form's, but for libraries' workspaces"
    found = rows[rows["between_steps"].notna() & rows["contender"].isin([FLOOR, *SHARDED])]
    complaints = []
    for _, row in found.iterrows():
        if row["contender"] == FLOOR:
            kept = whole_weights(row) + adamw_bytes(parse_size(row["size"]), int(row["vocab_size"]))
        else:
            kept = sharded(row).weights + sharded(row).moments
        expected = kept / MIB
        if not (1 - ROUNDING) * expected <= row["between_steps"] <= (1 + ROUNDING) * expected + WORKSPACES_MIB:
            complaints.append(f"{name_contender(row)}: {row['between_steps']:.0f} MiB, {expected:.0f} expected")
    return conclude(check, complaints, len(found), f"{len(found)} contenders" if len(found) else "counted on GPUs only")


def peaks_are_possible(rows: DataFrame) -> Check:
    """Peak memory holds the state of the weights, and fits into the device."""
    check = "the peak memory of sharded training is between the closed form of the state and the device's memory"
    found = rows[rows["peak_memory"].notna() & rows["contender"].isin([FLOOR, *SHARDED])]
    complaints = []
    for _, row in found.iterrows():
        state = 4 * whole_weights(row) if row["contender"] == FLOOR else round((1 - ROUNDING) * sharded(row).state)
        complaints += outside(row.rename({"mean": "step", "peak_memory": "mean"}), name_contender(row), state)
    return conclude(check, complaints, len(found), f"{len(found)} contenders" if len(found) else "counted on GPUs only")
