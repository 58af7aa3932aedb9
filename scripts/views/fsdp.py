"""Measured steps of sharded training, one row per contender, and the closed forms beside: what the report shares."""

import pandas
from numpy import median, nan
from pandas import DataFrame, Series

from cs336_systems.accounting.accelerators import Accelerator
from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.accounting.transformer import parameters as numbers_of
from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.fsdp import CONTENDERS, FullyShardedTraining
from cs336_systems.measure.measurement import parse_samples
from cs336_systems.measure.record import parameters
from cs336_systems.sizes import parse_size
from scripts.views.closed_forms import block_of
from scripts.views.communication import STATISTICS, WIDE_SPREAD
from scripts.views.data import PRECISIONS, one, select, size_order
from scripts.views.data_parallel import backend_of, samples_by_round

WRAPPERS = {declared.name: declared.title for declared in CONTENDERS}
"""What readers call the contenders, in the order of tables."""
OURS = ["fsdp", "fsdp_blocks"]
PYTORCH = "fully_shard"
SHARDED = [*OURS, PYTORCH]
CELL = ["size", "context", "processes", "precision"]
"""What tells apart the cells that the report compares."""
COLLECTIVES = {"all_gather": "gather", "reduce_scatter": "scatter"}
"""The kinds of communication that have columns of their own, and what these begin with."""
TIMES = ["compute", "communication", "hidden", "device_busy", "timeline_length"]
SERIES = ["gather_begins", "gather_ends", "needed", "begins"]


def contenders(table: DataFrame) -> DataFrame:
    """One row per measured contender of each cell, small models, few processes and fp32 first.

    Columns: the parameters, `label`, `wrapper`, `title`, `cell`, `gpu` and `gpu_memory`; STATISTICS of the step, ms;
    `wide`, whether its steps are more than WIDE_SPREAD apart; the medians of the other metrics, as measured, NaN where
    they were not; `memory`, MiB: the peak, and what lies outside of the allocator; `exposed`, ms: the median over the
    rounds of its median step less the floor's, as far as their optimizers do not make the difference. From the profiled
    step: `gather` and `scatter`, ms, the shares `gather_hidden` and `scatter_hidden` of them, `hidden_share` of all
    communication, `busy_share`, and `forward_share`, that of the hidden all-gathers in the profiled forward pass.
    """
    keys = [*parameters(FullyShardedTraining), "label", "wrapper"]
    steps = select(table, metric="step", status="ok").set_index(keys)
    numeric = table[table["median"].notna() & ~table["metric"].isin(["step", "timeline", *SERIES])]
    wide = select(numeric, kind="").pivot(index=keys, columns="metric", values="median")
    metrics = [name for name in FullyShardedTraining.metrics if name != "step"]
    wide = wide.reindex(index=steps.index, columns=metrics)
    for kind, name in COLLECTIVES.items():
        of_kind = select(numeric, kind=kind).pivot(index=keys, columns="metric", values="median")
        of_kind = of_kind.reindex(index=steps.index, columns=["communication", "hidden"])
        wide[name] = of_kind["communication"]
        wide[f"{name}_hidden"] = of_kind["hidden"] / of_kind["communication"].replace(0, nan)
    wide = steps[[*STATISTICS, "samples", "mean", "gpu", "gpu_memory"]].join(wide).reset_index()
    wide["title"] = wide["wrapper"].map(WRAPPERS)
    wide["cell"] = [cell_name(row) for _, row in wide.iterrows()]
    wide["wide"] = (wide["p80"] - wide["p20"]) / wide["median"] > WIDE_SPREAD
    wide["busy_share"] = wide["device_busy"] / wide["timeline_length"]
    wide["memory"] = wide["peak_memory"] + wide["outside_memory"].fillna(0)
    wide["hidden_share"] = wide["hidden"] / wide["communication"].replace(0, nan)
    wide["forward_share"] = wide["forward_hidden"] / wide["forward_gathers"].replace(0, nan)
    wide["exposed"] = exposed(wide)
    order = wide.assign(
        rank=wide["wrapper"].map(list(WRAPPERS).index),
        precision=wide["precision"].map(PRECISIONS.index),
        size=wide["size"].map(size_order(wide).index),
    )
    return wide.loc[order.sort_values([*CELL, "rank"]).index]


def cell_name(row: Series) -> str:
    """A cell in words, as in "2.7B, 2 GPUs, bf16"."""
    return f"{row['label']}, {setting_name(row)}"


def setting_name(row: Series) -> str:
    """What cells of one model differ in, in words."""
    return f"{row['processes']} {'GPUs' if row['gpu'] else 'processes'}, {row['precision']}"


def exposed(rows: DataFrame) -> list[float]:
    """What each contender's step takes beyond the floor's, less what its optimizer takes longer; NaN without floor."""
    floors = {tuple(row[CELL]): row for _, row in select(rows, wrapper=FLOOR).iterrows()}
    found = []
    for _, row in rows.iterrows():
        floor = floors.get(tuple(row[CELL]))
        if floor is None or row["wrapper"] == FLOOR:
            found.append(nan)
            continue
        longer = median(samples_by_round(row), axis=1) - median(samples_by_round(floor), axis=1)
        found.append(float(median(longer) - (row["optimizer"] - floor["optimizer"])))
    return found


def cells_of(rows: DataFrame) -> list[DataFrame]:
    """The contenders of each cell, in order."""
    return [cell for _, cell in rows.groupby("cell", sort=False)]


def traced_cell(rows: DataFrame) -> DataFrame:
    """The contenders of the cell whose profiles are drawn: that of most contenders, few processes, bf16 before fp32."""
    profiled = cells_of(rows[rows["timeline_length"].notna()])
    if not profiled:
        return rows.iloc[:0]

    def preference(cell: DataFrame) -> tuple[int, int, int]:
        first = cell.iloc[0]
        return (-len(cell), int(first["processes"]), -PRECISIONS.index(first["precision"]))

    return min(profiled, key=preference)


def series(table: DataFrame, row: Series, metric: str, kind: str = "") -> list[float]:
    """The samples of a contender's metric, in order; none where it was not measured."""
    cell = {name: row[name] for name in [*parameters(FullyShardedTraining), "wrapper"]}
    found = one(table, metric=metric, status="ok", kind=kind, **cell)
    return [] if found is None else parse_samples(found["samples"]) or [float(found["mean"])]


def forward_pass(table: DataFrame, row: Series) -> DataFrame:
    """The times of each unit in a contender's profiled forward pass, ms; no rows unless all are known of every unit."""
    times = {metric: series(table, row, metric) for metric in SERIES}
    whole = len({len(samples) for samples in times.values()}) == 1
    return DataFrame(times if whole else {}, columns=SERIES)


def sharded(row: Series) -> FullySharded:
    """How a row's model is sharded."""
    return FullySharded(
        shape=parse_size(row["size"]),
        vocab_size=int(row["vocab_size"]),
        ranks=int(row["processes"]),
        precision=row["precision"],
        by_block=row["wrapper"] != "fsdp",
    )


def unsharded(row: Series) -> StepMemory:
    """The memory of the same training with the whole state on every rank."""
    return StepMemory(
        block=block_of(pandas.concat([row, Series({"attention": "plain"})])),
        vocab_size=int(row["vocab_size"]),
        segment=0,
    )


def whole_weights(row: Series) -> int:
    """Bytes of all weights in fp32."""
    return FP32_BYTES * numbers_of(parse_size(row["size"]), int(row["vocab_size"]))


def measured_rates(all_reduces: DataFrame, floor: Series) -> Accelerator | None:
    """What a rank computes in a forward pass and sends, as measured elsewhere; None where either was not measured.

    The rate of products is that of the floor's whole forward pass, the rest of which so counts as products too.
    """
    rates = select(all_reduces, metric="bus_bandwidth", status="ok", backend=backend_of(floor))
    best = select(rates, processes=floor["processes"])["median"].max()
    if not (best > 0 and floor["forward"] > 0):
        return None
    unit = Accelerator(name="one per second", flops=1.0, bandwidth=1.0, memory=0.0)
    products = sum(times.compute for times in sharded(floor).forward(tokens_of(floor), unit))
    flops = products / (floor["forward"] / 1e3)
    return Accelerator(name="measured", flops=flops, bandwidth=1e9 * best, memory=float(floor["gpu_memory"] or 0))


def tokens_of(row: Series) -> int:
    """Tokens in the batch of one rank."""
    return int(row["batch_size"]) * int(row["context"])
