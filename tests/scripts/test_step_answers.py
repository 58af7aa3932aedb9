"""What the sections say of training steps: computed anew from made-up measurements, and from doctored ones."""

import statistics

import pandas
import pytest

from cs336_systems.accounting.transformer import parameters, state_bytes, step_flops
from cs336_systems.measure.measurement import WHOLE_CELL, format_samples, parse_samples, summarize
from cs336_systems.sizes import parse_size
from scripts.answers import benchmarking_mixed_precision, benchmarking_script, torch_compile
from scripts.views.data import load
from scripts.views.steps import HOST_BOUND, most_complete, steady, step_table
from tests.samples import H200, PEAK, planned_cells, provenance, rows_of, write_raw
from tests.samples.end_to_end import FIRST_MS


def tables_of(folder, scale, **origin):
    """The tables that the sections on steps read, of one scale's planned cells."""
    names = ("end_to_end", "attention", "autocast_dtypes")
    cells = {name: planned_cells(name, scale) if name == "end_to_end" else [] for name in names}
    raw = {name: write_raw(folder, name, rows_of(cells[name], provenance(**origin))) for name in names}
    return {name: load(name, raw[name]) for name in names}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """On an H200. Not to be changed."""
    return tables_of(tmp_path_factory.mktemp("h200"), "handout", **H200)


@pytest.fixture(scope="module")
def sound_cpu(tmp_path_factory):
    """On a CPU. Not to be changed."""
    return tables_of(tmp_path_factory.mktemp("cpu"), "smoke")


@pytest.fixture
def tables(sound):
    """On an H200, to be doctored."""
    return sound | {"end_to_end": sound["end_to_end"].copy()}


USUAL = {"compiled": False, "attention": "plain", "cold_start": False, "warmup": 5, "mode": "train_step"}


def where(table, **wanted):
    """The index of the one row that has these values, of a usual cell."""
    wanted = USUAL | wanted
    (index,) = table.index[(table[list(wanted)] == list(wanted.values())).all(axis=1)]
    return index


def median(table, metric, **wanted):
    return table.loc[where(table, metric=metric, **wanted), "median"]


def doctor(table, samples, **wanted):
    """Give a row these samples and their statistics."""
    found = summarize("step", "ms", samples)
    columns = ["samples", "mean", "std", "median", "p20", "p80"]
    table.loc[where(table, **wanted), columns] = [getattr(found, column) for column in columns]


def test_every_measured_cell_is_one_row(sound):
    table = sound["end_to_end"]
    steps = step_table(table)
    assert len(steps) == (table["metric"] == "step").sum() < len(planned_cells("end_to_end", "handout"))
    cell = {"size": "medium", "context": 256, "precision": "bf16"}
    (row,) = [row for _, row in steps.iterrows() if all(row[key] == value for key, value in (USUAL | cell).items())]
    assert row["forward + backward"] == median(table, "forward", **cell) + median(table, "backward", **cell)
    assert row["busy"] == median(table, "device_busy", **cell) / median(table, "step", **cell)
    assert row["host_bound"] == (row["busy"] < HOST_BOUND)
    assert row["samples"] == parse_samples(table.loc[where(table, metric="step", **cell), "samples"])
    assert list(dict.fromkeys(steps["label"])) == ["small", "medium", "large", "xl", "2.7B", "10B"]


def test_steps_of_cold_processes_are_not_steady(sound):
    steps = step_table(sound["end_to_end"])
    assert steps["cold_start"].any()
    assert not steady(steps)["cold_start"].any()
    assert set(steady(steps)["warmup"]) == {5}


def test_the_most_complete_step_stands_for_a_cell(sound):
    steps = most_complete(steady(step_table(sound["end_to_end"])))
    kinds = steps.groupby("label")["mode"].unique()
    assert list(kinds["10B"]) == ["forward_backward"]
    assert list(kinds["small"]) == ["train_step"]


def test_nothing_is_said_of_nothing(sound):
    empty = {name: table.iloc[:0] for name, table in sound.items()}
    assert benchmarking_script.answers(empty)["cells"] == 0
    assert benchmarking_mixed_precision.answers(empty)["smallest"] is None
    assert torch_compile.answers(empty)["times"] is None


def test_speedups_are_ratios_of_medians(sound):
    table = sound["end_to_end"]
    cell = {"size": "2.7B", "context": 512}
    times = {
        precision: median(table, "forward", precision=precision, **cell)
        + median(table, "backward", precision=precision, **cell)
        for precision in ("fp32", "bf16")
    }
    found = benchmarking_mixed_precision.answers(sound)
    (row,) = [row for row in found["speed"].rows if row[0] == "2.7B"]
    gain = times["fp32"] / times["bf16"]
    assert row[4:7] == [f"{times['fp32']:.1f}", f"{times['bf16']:.1f}", f"{gain:.2f}×"]
    assert found["largest"]["gain"] == pytest.approx(gain)
    assert found["largest"]["busy_gain"] == pytest.approx(PEAK.bf16 / PEAK.fp32, rel=0.02)


def test_larger_models_with_fewer_layers_can_be_faster(sound):
    found = benchmarking_mixed_precision.answers(sound)["inversions"]
    assert ("xl", 48, "2.7B", 32) in [
        (pair["small"]["size"], pair["small"]["layers"], pair["large"]["size"], pair["large"]["layers"])
        for pair in found
    ]
    assert all(pair["small"]["launches"] > pair["large"]["launches"] for pair in found)
    assert all(pair["gain"] > 1 for pair in found)


def test_what_is_slower_in_bf16_is_named(tables):
    table = tables["end_to_end"]
    assert benchmarking_mixed_precision.answers(tables)["slower"] == []
    table.loc[where(table, metric="backward", size="small", context=128, precision="fp32"), "median"] = 1.0
    (slower,) = benchmarking_mixed_precision.answers(tables)["slower"]
    assert slower["cell"] == "small at context 128"
    assert slower["gain"] < 1
    assert slower["host_bound"]


def test_a_longer_context_costs_the_host_nothing(sound):
    found = benchmarking_mixed_precision.answers(sound)
    cell = {"size": "small", "precision": "bf16"}
    short, long = (median(sound["end_to_end"], "step", context=context, **cell) for context in (128, 1024))
    assert found["flat"]["size"] == "small"
    assert (found["flat"]["tokens"], found["flat"]["factor"]) == (8, pytest.approx(long / short))
    assert found["flat"]["factor"] < 1.3
    (line,) = [row for row in found["pace"].rows if row[0] == "small"]
    launches = [
        median(sound["end_to_end"], "launches", **{**cell, "precision": p}, context=128) for p in ("fp32", "bf16")
    ]
    assert line[:4] == ["small", "12", *(f"{number:.0f}" for number in launches)]
    assert line[4] == f"{short:.1f}*"


def test_the_first_step_of_a_process_is_quoted_in_milliseconds(sound):
    found = benchmarking_script.answers(sound)
    assert found["extra_least"] == pytest.approx(FIRST_MS, rel=0.05)
    assert found["extra_most"] == pytest.approx(FIRST_MS, rel=0.05)
    assert found["extra_constant"]
    assert [phase for phase, _ in found["extra_by_phase"]] == ["forward"]
    table = sound["end_to_end"]
    cold = table[table["cold_start"] & (table["metric"] == "step")].pivot(
        index="size", columns="warmup", values=["mean", "median"]
    )
    inflation = cold["mean"][0] / cold["median"][0]
    assert (found["least_inflated"], found["most_inflated"]) == pytest.approx((inflation.min(), inflation.max()))
    assert found["allocations_first"] == (200, 200)
    assert found["late"] == []


def test_a_step_that_is_slow_after_one_warm_up_is_named(tables):
    table = tables["end_to_end"]
    cell = {"size": "large", "context": 128, "precision": "fp32", "mode": "forward_backward"}
    row = where(table, metric="first_step", warmup=1, cold_start=True, **cell)
    table.loc[row, ["mean", "median", "p20", "p80"]] *= 1.5
    (late,) = benchmarking_script.answers(tables)["late"]
    assert (late["size"], late["warmup"], late["allocations"]) == ("large", "1", 101)
    assert late["factor"] == pytest.approx(1.5, rel=0.05)


def test_processes_that_differ_without_regard_to_warm_up_are_named(tables):
    table = tables["end_to_end"]
    assert benchmarking_script.answers(tables)["between_processes"] is None
    cell = {"size": "large", "context": 128, "precision": "fp32", "mode": "forward_backward", "cold_start": True}
    row = where(table, metric="step", warmup=2, **cell)
    table.loc[row, "median"] *= 1.5
    found = benchmarking_script.answers(tables)["between_processes"]
    assert (found["size"], found["slow"][1], found["same_work"]) == ("large", "2", True)
    assert found["factor"] == pytest.approx(1.5, rel=0.05)
    table.loc[where(table, metric="device_busy", warmup=2, **cell), "median"] *= 1.5
    assert not benchmarking_script.answers(tables)["between_processes"]["same_work"]


def test_inference_is_compared_where_the_device_sets_the_pace(sound):
    steps = steady(step_table(sound["end_to_end"]))
    quick = steps[(steps["mode"] == "inference") & ~steps["host_bound"]]
    found = benchmarking_script.answers(sound)["inference"]
    assert 0 < found["cells"] <= len(quick) < (steps["mode"] == "inference").sum()


def test_cells_without_samples_are_counted(tables):
    table = tables["end_to_end"]
    assert benchmarking_script.answers(tables)["without_samples"] == 0
    table.loc[where(table, metric="step", size="large", context=256, precision="bf16"), "samples"] = ""
    assert benchmarking_script.answers(tables)["without_samples"] == 1


def test_warm_up_is_no_subject_where_it_was_not_varied(sound):
    table = sound["end_to_end"]
    only = sound | {"end_to_end": table[table["warmup"] == 5]}
    assert benchmarking_script.answers(only)["warmup_table"] is None


def test_the_verdict_on_scatter_is_that_of_the_samples(tables):
    table = tables["end_to_end"]
    cell = {"metric": "step", "size": "large", "context": 256, "precision": "bf16"}
    assert benchmarking_script.answers(tables)["verdict"] == "small"

    doctor(table, [20.0, *[10.0] * 9], **cell)
    found = benchmarking_script.answers(tables)
    assert (found["verdict"], found["wide_cells"], found["outliers"], found["first_outliers"]) == ("outliers", 1, 1, 1)
    assert found["worst_cell"] == "large, context 256, bf16, training step"
    (row,) = found["wide"].rows
    assert row[3:6] == ["2.00× (no. 1)", f"{100 * statistics.stdev([20.0, *[10.0] * 9]) / 11:.0f}", "0.0"]

    doctor(table, [10.0, 11.5] * 5, **cell)
    found = benchmarking_script.answers(tables)
    assert (found["verdict"], found["still_wide"], found["outliers"]) == ("mostly", 1, 0)

    doctor(table, [20.0, 10.0], **cell)  # of which too little is left without the outlier
    found = benchmarking_script.answers(tables)
    assert (found["verdict"], found["still_wide"], found["outliers"]) == ("mostly", 1, 1)

    steps = table.index[table["metric"] == "step"]
    table.loc[steps, "samples"] = format_samples([10.0, 11.5] * 5)
    table.loc[steps, ["mean", "std", "median"]] = [10.75, 0.79, 10.75]
    assert benchmarking_script.answers(tables)["verdict"] == "large"


def test_a_cpus_table_of_scatter_has_no_column_for_a_device(sound_cpu):
    table = sound_cpu["end_to_end"].copy()
    cell = {"metric": "step", "size": "nano", "context": 64, "precision": "fp32", "warmup": 3}
    doctor(table, [20.0, *[10.0] * 9], **cell)
    found = benchmarking_script.answers(sound_cpu | {"end_to_end": table})
    assert [len(found["wide"].columns), *map(len, found["wide"].rows)] == [6, 6]
    assert len(found["all_times"].columns) == 8


def test_cells_whose_pace_the_host_sets_are_counted_and_named(sound, sound_cpu):
    table = sound["end_to_end"]
    found = benchmarking_script.answers(sound)
    warm = table[(~table["cold_start"])].pivot_table(
        index=["size", "context", "precision", "mode", "compiled", "attention"], columns="metric", values="median"
    )
    assert found["host_bound"] == (warm["device_busy"] / warm["step"] < HOST_BOUND).sum() > 0
    trained = warm.dropna(subset="step").xs(("train_step", False, "plain"), level=["mode", "compiled", "attention"])
    waiting = (trained["device_busy"] / trained["step"] < HOST_BOUND).groupby(level="precision").agg(["sum", "size"])
    assert found["host_bound_training"] == {name: tuple(counts) for name, counts in waiting.iterrows()}
    (small,) = [row for row in found["all_times"].rows if row[:2] == ["small", "128"]]
    assert small[10].endswith("*")
    assert benchmarking_script.answers(sound_cpu)["pace_known"] == 0


def test_the_best_utilization_is_that_of_all_steps_and_says_of_what(sound):
    table = sound["end_to_end"]
    steps = table[(table["metric"] == "step") & (table["attention"] == "plain") & ~table["cold_start"]]
    best = {
        precision: max(
            step_flops(row.mode, parse_size(row.size), row.vocab_size, row.batch_size, row.context)
            / (row.median / 1e3)
            / PEAK.flops(precision)
            for row in steps[steps["precision"] == precision].itertuples()
        )
        for precision in ("fp32", "bf16")
    }
    found = benchmarking_script.answers(sound)["utilization"]
    assert {entry["precision"]: entry["share"] for entry in found} == pytest.approx(best)
    assert found[0]["share"] == max(best.values()) > 0.45  # a compiled one: eager steps are made up at 40 %
    assert [entry["cell"] for entry in found if "compiled" not in entry["cell"]] == []
    assert {entry["precision"]: "tensor cores" in entry["of"] for entry in found} == {"fp32": False, "bf16": True}


def test_what_runs_out_of_memory_is_held_against_the_closed_form(sound):
    found = benchmarking_script.answers(sound)
    (lost,) = found["lost"]
    state = state_bytes("train_step", parse_size("10B"), 10_000)
    assert state == 16 * parameters(parse_size("10B"), 10_000)
    assert (lost["size"], lost["contexts"], lost["never_fits"]) == ("10B", ["128 (bf16, fp32)"], True)
    assert lost["state"] == state / 2**30 > lost["device"] == 141
    trained = {"metric": "peak_memory", "mode": "train_step", "size": "small", "context": 1024, "attention": "plain"}
    peak = sound["end_to_end"].loc[where(sound["end_to_end"], precision="fp32", **trained), "mean"]
    small = state_bytes("train_step", parse_size("small"), 10_000)
    assert found["memory"]["most"][0] == pytest.approx(peak * 2**20 / small)


def test_compiling_pays_when_what_it_saves_is_what_it_cost(sound):
    table = sound["end_to_end"]
    found = torch_compile.answers(sound)
    row = next(row for row in found["times"].rows if row[:2] == ["small", "bf16"])
    cell = {"size": "small", "context": 512, "precision": "bf16"}
    eager, compiled = (median(table, "step", compiled=compiled, **cell) for compiled in (False, True))
    layers = parse_size("small").num_layers
    assert row[-2] == f"{1.5 * layers:.0f}"
    steps = int(row[-1])
    assert (steps - 1) * (eager - compiled) < 1e3 * 1.5 * layers * 1.01
    assert steps * (eager - compiled) > 1e3 * 1.5 * layers * 0.99
    fewer = [
        median(table, "launches", size=size, context=512, precision=precision, compiled=False, mode="train_step")
        / median(table, "launches", size=size, context=512, precision=precision, compiled=True)
        for size in ("small", "2.7B")
        for precision in ("fp32", "bf16")
    ]
    assert found["fewer_launches"] == pytest.approx((min(fewer), max(fewer)), rel=0.01)


def test_compiling_that_saves_nothing_never_pays(tables):
    table = tables["end_to_end"]
    cell = {"size": "small", "context": 512, "precision": "bf16", "compiled": True}
    table.loc[where(table, metric="step", **cell), "median"] = 1e3
    found = torch_compile.answers(tables)
    assert found["pays_never"] == ["small, bf16"]
    assert next(row for row in found["times"].rows if row[:2] == ["small", "bf16"])[-1] == "never"


def test_a_cell_whose_compiler_failed_says_so(tables):
    table = tables["end_to_end"]
    cell = {"size": "small", "context": 512, "precision": "bf16", "compiled": True}
    wanted = USUAL | cell
    rows = table.index[(table[list(wanted)] == list(wanted.values())).all(axis=1)]
    lost = table.loc[rows[:1]].assign(metric=WHOLE_CELL, status="failed", message="no compiler", median=None)
    tables["end_to_end"] = pandas.concat([table.drop(index=rows), lost])
    found = torch_compile.answers(tables)
    row = next(row for row in found["times"].rows if row[:2] == ["small", "bf16"])
    assert set(row[2:]) == {"not measured: no compiler"}


def test_all_together_is_measured_against_fp32(sound):
    table = sound["end_to_end"]
    found = torch_compile.answers(sound)["together"]
    cell = {"size": "2.7B", "context": 1024}
    first = median(table, "step", precision="fp32", **cell)
    last = median(table, "step", precision="bf16", compiled=True, attention="flash", **cell)
    assert found["gain"] == pytest.approx(first / last)
    assert found["table"].rows[0][0] == found["over"] == "fp32"
    assert found["fastest"] == "bf16, our attention, compiled"
