"""Which metrics a cell lacks, by another cell of its kind that the same code measured."""

import pandas
import pytest

from scripts.checks.completeness import cells_are_complete
from scripts.views.completeness import cells_of, contenders_of, missing_metrics
from scripts.views.data import frame
from tests.samples import planned_rows

CONTENDERS = ["data_parallel", "optimizer_sharding", "fsdp"]


@pytest.fixture(params=CONTENDERS)
def launches(request):
    """An experiment's name and its table of two and four processes; four lack a metric and a contender."""
    name = request.param
    two = frame(name, planned_rows(name, "smoke"))
    table = pandas.concat([two, two.assign(processes=4)], ignore_index=True)
    contenders = pandas.Series(contenders_of(table), table.index)
    newer = (table["metric"] == "tokens") | (contenders == contenders[contenders != ""].iloc[-1])
    return name, table[(table["processes"] == 2) | ~newer].copy()


def test_new_metrics_of_contenders_are_not_asked_of_earlier_code(launches):
    name, table = launches
    table.loc[table["processes"] == 4, "git_commit"] = "fedcba987654"
    assert missing_metrics(name, table) == {}
    assert cells_are_complete({name: table}).outcome == "passed"


def test_the_same_code_measures_the_same_of_all_contenders(launches):
    name, table = launches
    missing = missing_metrics(name, table)
    assert set(missing) == set(cells_of(name, table[table["processes"] == 4]))
    for metrics in missing.values():
        assert any(metric.endswith("tokens") for metric in metrics)
    assert cells_are_complete({name: table}).outcome == "failed"
