"""What the report says of all-reduces, and their self-checks, on made-up and on doctored tables."""

import pytest

from cs336_systems.measure.gpus import listed
from cs336_systems.measure.measurement import summarize
from scripts.answers import distributed_communication_single_node as section
from scripts.checks import all_reduce
from scripts.rendering.markup import Typst
from scripts.tables import merge
from scripts.views.communication import all_reduce_table, lines
from scripts.views.data import load, select
from scripts.writeup import environment
from tests.samples import H200, ROOT, planned_cells, planned_rows, provenance, rows_of, write_raw
from tests.samples.all_reduce import OVERHEAD_MS


def load_table(folder, scale, **origin):
    raw = write_raw(folder, "all_reduce", planned_rows("all_reduce", scale, **origin))
    merge("all_reduce", [str(raw)], str(folder / "table.csv"), "nvidia-h200" if origin else "cpu")
    return load("all_reduce", folder / "table.csv")


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    """The table of the handout's grid on H200s. Not to be changed."""
    return load_table(tmp_path_factory.mktemp("h200"), "handout", **H200)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    """The table of the smoke grid on a CPU. Not to be changed."""
    return load_table(tmp_path_factory.mktemp("cpu"), "smoke")


def doctored(table, metric, *, backend, processes, megabytes, **changes):
    """The table with other statistics of one row."""
    (index,) = select(table, metric=metric, backend=backend, processes=processes, megabytes=megabytes).index
    table = table.copy()
    for column, value in changes.items():
        table.loc[index, column] = value
    return table


def answers(table):
    return section.answers({"all_reduce": table})


def rendered(table):
    template = environment(ROOT / "report").get_template("sections/distributed_communication_single_node.typ.j2")
    return template.render(
        a=answers(table),
        summary={"machine": "a machine", "gpu": table["gpu"].iloc[0]},
        reproduce=lambda name: Typst(name),
        figure=lambda name: Typst(f"<fig-{name}>"),
    )


def outcomes(table):
    return {check.check: (check.outcome, check.detail) for check in all_reduce.checks({"all_reduce": table})}


def outcome(table, words):
    (found,) = [result for check, result in outcomes(table).items() if words in check]
    return found


def test_the_lines_are_those_that_the_times_were_made_of(h200):
    found = lines(all_reduce_table(h200))
    assert list(found) == [(backend, n) for backend in ("nccl", "gloo") for n in (2, 4, 6)]
    for (backend, n), line in found.items():
        assert line.overhead == pytest.approx(n / 2 * OVERHEAD_MS[backend] / 1e3, rel=0.05)
        rate = {"nccl": 340e9, "gloo": 2e9 * 2 / n}[backend]
        assert line.bandwidth == pytest.approx(rate * n / (2 * (n - 1)), rel=0.01)
    rows = answers(h200)["fits"].rows
    assert [row[:2] for row in rows] == [["NCCL", "2"], ["NCCL", "4"], ["NCCL", "6"], *(["Gloo", n] for n in "246")]
    assert float(rows[0][2]) == pytest.approx(30, rel=0.05)  # µs
    assert float(rows[0][3]) == pytest.approx(340, rel=0.01)  # GB/s
    assert float(rows[0][4]) == pytest.approx(30e-6 * 340e9 / 1e6, rel=0.1)  # MB


def test_overhead_processes_and_backends_are_compared(h200):
    found = answers(h200)
    assert found["exact"] is True
    nccl, gloo = found["sizes"]
    assert (nccl["backend"], nccl["smallest"], nccl["largest"]) == ("NCCL", 1, 1000)
    assert nccl["small"][0] > 0.85 > 0.05 > nccl["large"][1]
    assert gloo["small"][1] < 0.5
    assert found["sent_together"] == ["NCCL"]
    nccl, gloo = found["processes"]
    assert (nccl["few"], nccl["many"], nccl["megabytes"], nccl["verdict"]) == (2, 6, 1000, "ring")
    assert nccl["ring"] == pytest.approx((2 * 5 / 6) / (2 * 1 / 2))
    assert (gloo["verdict"], gloo["factor"]) == ("more", pytest.approx(5, rel=0.02))
    assert found["between"]["least"][1] == "1 MB between 2 processes"
    assert found["between"]["most"] == (pytest.approx(500, rel=0.02), "1000 MB between 6 processes")
    assert found["link"]["share"] == pytest.approx(340 / 450, rel=0.02)
    fast = doctored(h200, "time", backend="nccl", processes=6, megabytes=1000, median=3.0)
    assert answers(fast)["processes"][0]["verdict"] == "less"
    sound, doubtful = rendered(h200), rendered(fast)
    assert ("the ring's growth to within" in sound, "the ring's growth to within" in doubtful) == (True, False)
    assert ("meets the medians well" in sound, "meets the medians well" in doubtful) == (True, False)
    assert "@tab-line" in sound


def test_a_cpu_has_one_backend_and_a_line_without_residual(cpu):
    found = answers(cpu)
    assert found["backends"] == ["Gloo"]
    assert found["fits"].rows[0][-1] == "–"
    assert (found["processes"], found["between"], found["link"], found["worst_residual"]) == ([], None, None, None)
    assert "NCCL needs a GPU for each process" in rendered(cpu)
    assert "NVLink" not in rendered(cpu)


def test_wide_spreads_are_marked(h200):
    table = doctored(h200, "time", backend="gloo", processes=4, megabytes=10, p20=14.0, p80=17.0)
    marked = [row for row in answers(table)["times"].rows if "*" in row[3]]
    assert [row[:3] for row in marked] == [["Gloo", "4", "10"]]
    assert answers(table)["wide"] == 1


def test_what_was_not_timed_says_why(tmp_path):
    cells = planned_cells("all_reduce", "smoke")
    rows = rows_of(cells, provenance())
    kept = [row for row in rows if row.megabytes == 10 or row.metric in ("wrong_numbers", "wall")]
    raw = write_raw(tmp_path, "all_reduce", kept)
    merge("all_reduce", [str(raw)], str(tmp_path / "table.csv"), "cpu")
    table = load("all_reduce", tmp_path / "table.csv")
    untimed, timed = answers(table)["times"].rows
    assert untimed[:3] == ["Gloo", "2", "1"]
    assert set(untimed[3:]) == {"not measured: its sum is wrong"}
    assert "not" not in timed[3]
    assert answers(table)["fits"] is None  # one size
    assert "@tab-line" not in rendered(table)


def test_sound_tables_pass(h200, cpu):
    assert {found for found, _ in outcomes(h200).values()} == {"passed"}
    assert [found for found, _ in outcomes(cpu).values()] == ["passed", "passed", "not applicable"]


def test_a_wrong_sum_fails(h200):
    wrong = summarize("wrong_numbers", "", [0.0, 250.0])
    cell = {"backend": "nccl", "processes": 4, "megabytes": 100}
    table = doctored(h200, "wrong_numbers", **cell, mean=wrong.mean, p80=wrong.p80)
    assert outcome(table, "sum was right") == ("failed", "NCCL, 4 processes, 100 MB: up to 200 wrong")
    assert answers(table)["exact"] is False


def test_a_larger_message_that_is_faster_fails(h200):
    table = doctored(h200, "time", backend="gloo", processes=2, megabytes=100, p80=5.0)
    found, detail = outcome(table, "larger message")
    assert found == "failed"
    assert "Gloo, 2 processes, 10 MB" in detail


@pytest.mark.parametrize(
    ("processes", "gigabytes", "expected"),
    [(2, 449.0, "passed"), (2, 451.0, "failed"), (4, 530.0, "passed"), (4, 541.0, "failed")],
)
def test_no_link_carries_more_than_it_can(h200, processes, gigabytes, expected):
    assert listed("NVIDIA H200").link == 450e9
    table = doctored(h200, "bus_bandwidth", backend="nccl", processes=processes, megabytes=1000, median=gigabytes)
    assert outcome(table, "data sheet's link")[0] == expected
