"""What each improvement of this report makes of one training step: from one device in fp32 to several of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.accounting.transformer import step_flops
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.measure.measurement import WHOLE_CELL, parse_samples
from cs336_systems.sizes import parse_size
from scripts.rendering.markup import Table, significant
from scripts.views.communication import WIDE_SPREAD
from scripts.views.data import HANDOUT_CONTEXT, select

SIZE = "xl"
NONE = "–"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A way to train the model."""

    title: str
    experiment: str
    """Whose rows it is in."""
    wanted: Mapping[str, Any]
    """The values of their columns."""
    processes: int = 1


ONE_DEVICE = {"mode": "train_step", "attention": "plain", "compiled": False}


def settings() -> list[Setting]:
    """All that is compared, in the order of the report."""
    low = {"precision": "bf16"}
    found = [
        Setting(title="fp32", experiment="end_to_end", wanted=ONE_DEVICE | {"precision": "fp32"}),
        Setting(title="bf16 autocast", experiment="end_to_end", wanted=ONE_DEVICE | low),
        Setting(
            title="bf16, our attention", experiment="kernel_profile", wanted=ONE_DEVICE | low | {"attention": "flash"}
        ),
        Setting(title="bf16, compiled", experiment="kernel_profile", wanted=ONE_DEVICE | low | {"compiled": True}),
    ]
    for processes in (2, 4):
        found += several_devices(processes)
    return found


def several_devices(processes: int) -> Iterator[Setting]:
    """Those on so many devices, where the device sets the pace: compiled in bf16, or in fp32."""
    for name, title in {
        "naive": "bf16, compiled, naive data parallel",
        "bucketed": "bf16, compiled, bucketed",
        "peer_memory": "bf16, compiled, peer memory",
    }.items():
        wanted = {"processes": processes, "precision": "bf16", "compiled": True, "wrapper": name}
        yield Setting(title=title, experiment="data_parallel", processes=processes, wanted=wanted)
    for name, title in {
        "sharded": "fp32, sharded optimizer",
        "sharded_peer_memory": "fp32, sharded optimizer, peer memory",
        "sharded_gradients": "fp32, sharded optimizer and gradients",
    }.items():
        wanted = {"processes": processes, "precision": "fp32", "contender": name}
        yield Setting(title=title, experiment="optimizer_sharding", processes=processes, wanted=wanted)


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    steps: list[dict[str, Any]] = []
    left_out: dict[str, list[str]] = {}
    for setting in settings():
        rows = rows_of(tables[setting.experiment], setting)
        timed = select(rows, metric="step", status="ok").sort_values("median", kind="stable")
        if len(timed):
            steps.append(numbers(setting, timed.iloc[0], rows))
        else:
            name = f"{setting.title} on {setting.processes}" if setting.processes > 1 else setting.title
            left_out.setdefault(why_not(rows), []).append(name)
    fastest = max(steps, key=lambda step: step["tokens"], default=None)
    return {
        "size": SIZE,
        "context": HANDOUT_CONTEXT,
        "batch": steps[0]["batch"] if steps else None,
        "wide_spread": WIDE_SPREAD,
        "steps": table_of(steps) if steps else None,
        "gpu": bool(steps and steps[0]["gpu"]),
        "first": steps[0] if steps else None,
        "fastest": fastest,
        "gain": fastest["tokens"] / steps[0]["tokens"] if fastest else None,
        "mfu": max((step for step in steps if step["mfu"]), key=lambda step: step["mfu"], default=None),
        "left_out": left_out,
    }


def rows_of(table: DataFrame, setting: Setting) -> DataFrame:
    """All rows of a setting, those of lost cells included, which have no details."""
    rows = select(table, size=SIZE, context=HANDOUT_CONTEXT)
    details = {"wrapper", "contender"}
    for name, value in setting.wanted.items():
        kept = rows[name] == value
        rows = rows[kept | (rows["metric"] == WHOLE_CELL) if name in details else kept]
    return rows


def why_not(rows: DataFrame) -> str:
    """Why a setting has no step."""
    lost = rows[(rows["status"] != "ok") & rows["metric"].isin([WHOLE_CELL, "step"])]
    if not len(lost):
        return "not run"
    return "out of memory" if lost["status"].iloc[0] == "oom" else str(lost["message"].iloc[0])


def numbers(setting: Setting, step: Series, rows: DataFrame) -> dict[str, Any]:
    """What a setting's step achieves: tokens of all devices per second, utilization, and memory of a device, MiB."""
    batch, context = int(step["batch_size"]), int(step["context"])
    seconds = step["median"] / 1e3
    flops = step_flops("train_step", parse_size(step["size"]), int(step["vocab_size"]), batch, context)
    peak = gpu_of(step["gpu"])
    same = {name: step[name] for name in ("wrapper", "bucket_mb") if name in rows}
    return {
        "title": setting.title,
        "processes": setting.processes,
        "gpu": step["gpu"],
        "batch": batch,
        "median": step["median"],
        "p20": step["p20"],
        "p80": step["p80"],
        "n": int(step["n"]),
        "tokens": setting.processes * batch * context / seconds,
        "mfu": flops / seconds / peak.flops(step["precision"]) if peak else None,
        "memory": most(select(rows, metric="peak_memory", status="ok", **same))
        + (most(select(rows, metric="outside_memory", status="ok", **same)) if "wrapper" in rows else 0),
    }


def most(rows: DataFrame) -> float:
    """The largest sample of some rows; 0 where there are none."""
    return max((max(parse_samples(row["samples"]) or [row["mean"]]) for _, row in rows.iterrows()), default=0.0)


def table_of(steps: list[dict[str, Any]]) -> Table:
    """One row per setting, by number of devices."""
    body: list[list[str]] = []
    base = steps[0]["tokens"]
    for step in steps:
        unit = "GPU" if step["gpu"] else "process"
        heading = f"{step['processes']} {unit}{'' if step['processes'] == 1 else 's' if unit == 'GPU' else 'es'}"
        if [heading] not in body:
            body.append([heading])
        body.append(
            [
                step["title"],
                f"{step['median']:.1f}{' *' if (step['p80'] - step['p20']) / step['median'] > WIDE_SPREAD else ''}",
                f"{step['p20']:.1f}–{step['p80']:.1f}",
                str(step["n"]),
                f"{step['tokens']:.0f}",
                f"{step['tokens'] / base:.2f}",
                NONE if step["mfu"] is None else f"{100 * step['mfu']:.1f}",
                NONE if pandas.isna(step["memory"]) or not step["memory"] else str(significant(step["memory"] / 1024)),
            ]
        )
    titles = ["", "median", "p20–p80", "n", "tokens/s", "× first", "MFU / %", "peak / GiB"]
    return Table(titles, body, groups=[("", 1), ("step / ms", 3), ("all devices", 2), ("of a device", 2)])
