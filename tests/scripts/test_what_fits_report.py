"""The predictions of memory and time in the report, and the self-checks on them."""

import json

import pytest

from cs336_systems.accounting.peak_memory import possible_peaks
from cs336_systems.accounting.units import MIB
from cs336_systems.fit.recorded import PATH, TIME_WITHIN
from scripts.answers import what_fits as section
from scripts.checks import checks_of
from scripts.checks import what_fits as checks
from scripts.fit_rates import facts
from scripts.views.data import statistic
from scripts.views.longest_contexts import longest_contexts
from scripts.views.what_fits import judged, predictions
from tests.support.faults import recorded


@pytest.fixture(scope="module")
def tables():
    return recorded()


def doctored(tables, experiment, metric, **values):
    """The tables with other values in the rows of a metric: of 2.7B at its longest context."""
    table = tables[experiment].copy()
    rows = (table["metric"] == metric) & (table["label"] == "2.7B")
    rows &= table["context"] == table.loc[rows, "context"].max()
    for column, change in values.items():
        table.loc[rows, column] = change(table.loc[rows, column])
    return tables | {experiment: table}


def outcomes(tables):
    return [check.outcome for check in checks_of(checks, tables)]


def test_recorded_steps_are_as_predicted(tables):
    assert outcomes(tables) == ["passed"] * 3
    found = predictions(tables)
    assert len(found) > 300
    assert {"small", "2.7B", "10B"} <= set(found["label"])
    assert judged(found, "time")["time_error"].abs().max() <= TIME_WITHIN


def test_the_facts_of_fit_are_those_of_the_recorded_steps(tables):
    """If not: python -m scripts.fit_rates."""
    written, found = json.loads(PATH.read_text()), facts(tables)
    assert written.keys() == found.keys()
    for key, value in found.items():
        assert written[key] == (pytest.approx(value, rel=1e-2) if key == "weights" else value), key


def test_what_is_off_is_told(tables):
    more = doctored(tables, "end_to_end", "peak_memory", mean=lambda mean: 1.1 * mean)
    slower = doctored(tables, "checkpointing", "step", median=lambda median: 1.4 * median)
    small = doctored(tables, "end_to_end", "step", gpu_memory=lambda memory: memory // 4)
    assert outcomes(more) == ["failed", "passed", "passed"]
    assert outcomes(slower) == ["passed", "failed", "passed"]
    assert outcomes(small) == ["passed", "passed", "failed"]


def test_pytorchs_ddp_has_its_first_buckets_or_not_and_nothing_between(tables):
    """Half a set of gradients more is neither."""
    table = tables["data_parallel"].copy()
    rows = (table["metric"] == "peak_memory") & table["wrapper"].str.startswith("ddp")
    settings = {setting for setting in predictions(tables)["setting"] if setting.rebuilds}
    for setting in settings:
        more, less = possible_peaks(setting)
        assert more.total - less.total == pytest.approx(4 * setting.weights, rel=0.02)
    table.loc[rows, "mean"] += 4 * settings.pop().weights / 2 / MIB
    assert outcomes(tables | {"data_parallel": table})[0] == "failed"


def test_a_step_that_should_have_fitted_is_told(tables):
    table = tables["end_to_end"].copy()
    rows = (table["metric"] == "cell") & (table["status"] == "oom")
    table.loc[rows, "size"] = "small"
    assert outcomes(tables | {"end_to_end": table})[2] == "failed"


def test_without_a_gpu_the_recorded_one_is_told(tables):
    empty = {name: table.iloc[:0] for name, table in tables.items()}
    assert outcomes(empty) == ["not applicable"] * 3
    here, nowhere = section.answers(tables), section.answers(empty)
    assert nowhere["error"].verdict == ""
    assert 'One #"H200"; trains' in here["fits"].verdict == nowhere["fits"].verdict


@pytest.mark.parametrize("way", ["plain", "flash", "blocks recomputed"])
def test_the_longest_context_is_that_of_the_measured_blocks(tables, way):
    """32 blocks, each as large as a single one was measured at 2048 tokens; weights and moments take 12 bytes each."""
    saved = statistic(
        tables["block_memory"],
        "mean",
        size="2.7B",
        context=2048,
        precision="bf16",
        attention="plain" if way == "plain" else "flash",
        metric="saved_activations",
    )
    scores, stream = 4 * 32 * 2048**2 * (4 + 2), 4 * 2048 * 2560 * 4

    def needed(context):
        times = context / 2048
        of_scores = scores * times**2 if way == "plain" else 0
        block = of_scores + times * (saved * MIB - (scores if way == "plain" else 0))
        kept = 32 * times * stream + block if way == "blocks recomputed" else 32 * block
        return 12 * 3.407e9 + kept

    capacity = 150.75e9
    found = longest_contexts("NVIDIA H200", capacity).set_index("label")
    longest = found.loc["2.7B", f"{way} context"]
    assert needed(longest) < found.loc["2.7B", f"{way} memory"] * MIB < capacity < needed(2 * longest)


def test_an_unlisted_gpu_has_no_times_and_a_small_one_fits_nothing():
    found = longest_contexts("a GPU that nobody lists", 150.75e9).set_index("label")
    assert found["plain context"].notna().any()
    assert found.filter(like="seconds").isna().all(axis=None)
    assert section.what_fits("a GPU that nobody lists", 1e9).verdict == ""
