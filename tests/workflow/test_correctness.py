"""Nothing is measured with code that fails its tests; what other code measures is measured all the same."""

import re

import pytest

from tests.workflow.project import (
    GRIDS,
    NO_CELLS,
    NUMERIC_TEST,
    add_toy_experiment,
    copy_project,
    replace_tests_of_instruments,
    snakemake,
)

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def test_incorrect_code_is_not_measured(tmp_path):
    folder = copy_project(tmp_path, NO_CELLS | {"accumulation": GRIDS["accumulation"]}, sections=())
    add_toy_experiment(folder)
    replace_tests_of_instruments(folder)
    (folder / "tests/test_ping.py").write_text(NUMERIC_TEST.format("False"))
    printed = snakemake(folder, "measurements", check=False)
    # The instruments are tested by whichever job comes first.
    told = r"The code is incorrect on this machine, so nothing was measured with it: (tests/test_instruments\.py )?"
    assert re.search(told + r"tests/test_ping\.py\n", printed)
    measured = {path.parent.name for path in (folder / "results/cpu/raw").rglob("*.csv")}
    assert measured == {"accumulation"}
