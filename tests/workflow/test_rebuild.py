"""Jobs that a change re-runs, and those that it leaves alone."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.project import GRIDS, edit, edit_yaml, environment, planned_jobs, planned_rules, snakemake

pytestmark = pytest.mark.workflow

REPORT = {"render", "typeset", "verdict", "writeup"}
EDIT = "\n\nEDITED = True\n"
TABLE = "results/cpu/tables/accumulation.csv"


def test_everything_is_made_once(finished):
    assert (finished / "results/cpu/writeup.pdf").read_bytes().startswith(b"%PDF")
    verdict = (finished / "results/cpu/verdict.txt").read_text()
    assert re.fullmatch(r"The report is results/cpu/writeup\.pdf \((\d+) of \1 self-checks passed\)\n", verdict)
    assert "the whole step" in (finished / "results/cpu/figures/kernel_timeline.svg").read_text()
    assert "Nothing to be done" in snakemake(finished)


@pytest.mark.slow
def test_an_environment_in_a_folder_with_a_space_will_do(project, tmp_path):
    (tmp_path / "an environment").symlink_to(sys.prefix)
    python = tmp_path / "an environment" / "bin" / Path(sys.executable).name
    (project / TABLE).unlink()
    command = [python, "-m", "snakemake", TABLE, "nsys"]
    done = subprocess.run(command, cwd=project, env=environment(project), stdout=subprocess.PIPE, text=True, check=True)
    assert (project / TABLE).exists()
    assert "nsys is not on the PATH, so no .nsys-rep file was written; `snakemake kernel_profile`" in done.stdout


def test_a_run_says_how_far_it_is(finished):
    lines = (finished / "results/cpu/progress.log").read_text().splitlines()
    assert re.search(r"^[-0-9]{10} [:0-9]{8} 0 of 5 cells done, .* left.* \| \w+/\w+, cell 1 of \d: \w+=", lines[0])
    assert "5 of 5 cells done" in lines[-1]


def test_jobs_of_the_same_number_of_gpus_run_in_the_order_of_the_configuration(finished):
    csvs = [finished / f"results/cpu/raw/{name}/{grid}.csv" for name, grids in GRIDS.items() for grid in grids]
    assert sorted(csvs, key=lambda path: path.stat().st_mtime_ns) == csvs


@pytest.mark.slow
def test_an_edited_section_is_filled_and_typeset(project):
    edit(project / "report/sections/torch_compile.typ.j2", "attention alone", "attention by itself")
    assert planned_rules(project, "writeup") == REPORT
    before = os.times()
    snakemake(project, "writeup")
    after = os.times()
    # Twice the promise, in seconds of the processor: the machine may be busy with other tests.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 12


def test_edits_that_no_number_depends_on_redo_nothing(project):
    module = project / "cs336_systems/benchmarks/accumulation.py"
    module.write_text("# A comment.\n" + module.read_text())
    edit(project / "cs336_systems/benchmarks/__main__.py", "    main(", "    print('what is printed')\n    main(")
    edit(project / "cs336_systems/benchmarks/command_line.py", "float_format='{:.4g}'", "float_format='{:.3g}'")
    edit(project / "tests/test_model.py", "import pytest\n", "import pytest\n\nEDITED = True\n")
    assert planned_rules(project) == set()


def test_only_a_raised_revision_measures_anew(project):
    edit(project / "cs336_systems/experiments/base.py", "is missing", "is absent")
    edit(project / "cs336_systems/benchmarks/accumulation.py", "ADDEND = 0.01", "ADDEND = 0.02")
    raise_revision(project, "model")
    assert planned_jobs(project) == {"end_to_end/eager"}
    raise_revision(project, "accumulation")
    assert planned_jobs(project) == {"accumulation/all", "end_to_end/eager"}
    assert "render" in planned_rules(project, "writeup")  # which says that the code has changed


def raise_revision(project, name):
    """Do what `scripts.revisions bump` does, without its look at all code."""
    edit(project / "cs336_systems/revisions.yaml", f"\n{name}: {{revision: 1,", f"\n{name}: {{revision: 2,")


@pytest.mark.slow
def test_a_changed_step_is_traced_again(project):
    edit(project / "config.yaml", "trace:\n  smoke:\n    size: nano", "trace:\n  smoke:\n    size: micro")
    assert planned_rules(project) >= {"kernel_trace", "figures", "typeset"}
    assert "kernel_trace" not in planned_rules(project, "writeup")


@pytest.mark.slow
def test_an_edited_script_redraws_only_what_it_draws(project):
    drawn = {path: path.read_text() for path in (project / "results/cpu/figures").iterdir()}
    assert {path.stem for path in drawn} == {"kernel_timeline", "roofline", "kernel_shares"}
    with (project / "scripts/figures/kernel_shares.py").open("a") as file:
        file.write(EDIT)
    snakemake(project, "figures")
    # Each ends with the digest of what it was drawn from.
    assert {path.stem for path, text in drawn.items() if path.read_text() != text} == {"kernel_shares"}
    assert planned_rules(project, "figures") == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "redone"),
    [
        ("scripts/answers/flash_backward.py", REPORT),
        ("scripts/checks/attention_calls.py", {"checks", *REPORT}),
        ("scripts/rendering/style.py", {"figures", *REPORT} - {"render"}),
        ("cs336_systems/accounting/attention.py", {"checks", "figures", *REPORT}),
        ("cs336_systems/experiments/autocast_dtypes.py", {"tables", "checks", "figures", *REPORT}),
    ],
)
def test_an_edited_module_redoes_what_uses_it(project, module, redone):
    with (project / module).open("a") as file:
        file.write(EDIT)
    assert planned_rules(project, "writeup") == redone


@pytest.mark.slow
def test_a_strict_report_with_a_failed_check_and_rows_that_are_planned_no_more(project):
    grids = GRIDS | {"accumulation": {"all": GRIDS["accumulation"]["all"] | {"cast": [True]}}}
    edit_yaml(project / "config.yaml", experiments={name: {"smoke": g, "handout": g} for name, g in grids.items()})
    (project / "scripts/checks/planted.py").write_text(
        "from scripts.checks import Check\n\n\n"
        "def planted(tables) -> Check:\n    return Check('nothing is planted', 'failed', 'this is')\n"
    )
    (project / "results/cpu/writeup.pdf").unlink()
    printed = snakemake(project, "writeup", "--config", "strict=true", check=False)
    assert "strict is true, and 1 self-check failed: nothing is planted: this is" in printed
    assert (project / "results/cpu/writeup.pdf").is_file()
    assert not (project / "results/cpu/verdict.txt").exists()
    printed = snakemake(project, "writeup", "--config", "strict=false")
    assert "Measured cells left out because this configuration does not plan them: 1." in printed
    elsewhere = snakemake(project, "writeup", "--config", "scale=quick", check=False)
    assert "results/quick/cpu/raw has none of the planned results; run `snakemake` to measure them" in elsewhere
    assert "or add the --config that made results/cpu\n" in elsewhere
    assert "self-checks passed" in (project / "results/cpu/verdict.txt").read_text()
    # Rows that are planned no more are counted, and used by nothing.
    with (project / TABLE).open() as file:
        assert {row["cast"] for row in csv.DictReader(file)} == {"True"}
    with (project / "results/cpu/coverage.csv").open() as file:
        coverage = {(row["experiment"], row["grid"]): row for row in csv.DictReader(file)}
    assert coverage["accumulation", "all"]["ok"] == coverage["accumulation", "–"]["unplanned"] == "1"
    assert "omits 1 measured cell that" in (project / "results/cpu/writeup.typ").read_text()


def test_lint_finds_nothing_but_conda(finished):
    findings = re.findall(r"^    \* (.*)$", snakemake(finished, "--lint", check=False), re.M)
    assert {finding for finding in findings if "conda" not in finding} == set()
