"""Files of times that other tools wrote."""

import json
import random

import numpy
import pytest

from cs336_systems.compare.__main__ import main
from cs336_systems.compare.samples import read_samples

NAMES = [f"kernel_{index}" for index in range(20)]
SLOWED = NAMES[3]


def seconds(run, name):
    """Samples of one name in one run: 1 ms, a scatter of 0.2 % within a run and of 0.3 % between runs."""
    of_run, of_name = random.Random(f"{run} {name}"), random.Random(name)
    median = 1e-3 * of_name.uniform(1, 4) * of_run.gauss(1, 3e-3) * (1.2 if run == "slow" and name == SLOWED else 1)
    return [median * of_run.gauss(1, 2e-3) for _ in range(40)]


def as_csv(path, run):
    lines = [f"{name},{value}" for name in NAMES for value in seconds(run, name)]
    path.write_text("\n".join(["name,seconds", *lines]))


def as_pytest_benchmark(path, run):
    benchmarks = [
        {"name": name, "fullname": f"test.py::{name}", "stats": {"data": seconds(run, name)}} for name in NAMES
    ]
    machine = {"cpu": {"brand_raw": f"processor of {run}"}, "python_version": "3.12.3"}
    path.write_text(json.dumps({"machine_info": machine, "commit_info": {"id": run}, "benchmarks": benchmarks}))


def value(number):
    return [{"name": "value", "type": "float64", "value": str(number)}]


def as_nvbench(path, run):
    states = []
    for name in NAMES:
        samples = seconds(run, name)
        summaries = [
            {"tag": "nv/cold/time/gpu/mean", "data": value(numpy.mean(samples))},
            {"tag": "nv/cold/time/gpu/stdev/relative", "data": value(numpy.std(samples) / numpy.mean(samples))},
            {"tag": "nv/cold/sample_size", "data": [{"name": "value", "type": "int64", "value": str(len(samples))}]},
        ]
        states.append({"name": f"Device=0 {name}", "device": 0, "is_skipped": False, "summaries": summaries})
    states.append({"name": "Device=0 skipped", "device": 0, "is_skipped": True, "summaries": []})
    content = {"devices": [{"id": 0, "name": f"GPU of {run}"}], "benchmarks": [{"name": "copy", "states": states}]}
    path.write_text(json.dumps(content))


WRITERS = {"times.csv": as_csv, "pytest.json": as_pytest_benchmark, "nvbench.json": as_nvbench}


@pytest.mark.parametrize("name", WRITERS)
def test_a_slowed_kernel_is_found_and_no_other(tmp_path, capsys, name):
    for run in ("first", "again", "slow"):
        (tmp_path / run).mkdir()
        WRITERS[name](tmp_path / run / name, run)
    first, again, slow = (str(tmp_path / run / name) for run in ("first", "again", "slow"))
    assert main([first, again, "--on", "gpu", "--fail-if-slower", "5%"]) == 0
    out = capsys.readouterr().out
    assert "0 faster" in out
    assert "0 slower" in out
    assert main([first, slow, "--on", "gpu", "--fail-if-slower", "5%"]) == 1
    error = capsys.readouterr().err.splitlines()
    assert error[1].startswith("1 slower")
    assert error[2].endswith(SLOWED)


def test_why_few_times_of_a_cpu_have_no_verdict_is_printed(tmp_path, capsys):
    for run in ("first", "slow"):
        lines = [f"{SLOWED},{value}" for value in seconds(run, SLOWED)]
        (tmp_path / f"{run}.csv").write_text("\n".join(["name,seconds", *lines]))
    files = [str(tmp_path / f"{run}.csv") for run in ("first", "slow")]
    assert main(files) == 0
    out = capsys.readouterr().out
    assert "Treated as CPU times; if they are not, add --on gpu." in out
    assert "1 cannot be decided: calibrating CPU times needs 16 or more times of unchanged code" in out
    assert "Same machine" not in out
    assert main([*files, "--on", "gpu"]) == 0
    assert f"slower in {files[1]}" in capsys.readouterr().out


def test_samples_are_read_to_the_digit(tmp_path):
    for name, write in WRITERS.items():
        write(tmp_path / name, "first")
        samples = read_samples(str(tmp_path / name))
        assert len(samples.times) == len(NAMES)
        key = next(key for key in samples.times if key.endswith(SLOWED))
        expected = numpy.mean if name == "nvbench.json" else numpy.median
        assert samples.times[key].median == pytest.approx(1e3 * expected(seconds("first", SLOWED)), rel=1e-6)
        assert samples.times[key].n == 40
        assert samples.on_gpu == (name == "nvbench.json")


def pytest_benchmark(data, times=1):
    return f'{{"benchmarks": [{", ".join([f"""{{"fullname": "x", "stats": {{"data": {data}}}}}"""] * times)}]}}'


def nvbench(noise="0.01", count="10"):
    tags = {"time/gpu/mean": "1e-3", "time/gpu/stdev/relative": noise, "sample_size": count}
    summaries = [{"tag": f"nv/cold/{tag}", "data": value(number)} for tag, number in tags.items()]
    states = [{"name": "s", "summaries": summaries}, {"name": "skipped", "is_skipped": True, "summaries": None}]
    return json.dumps(
        {"devices": None, "benchmarks": [{"name": "none", "states": None}, {"name": "b", "states": states}]}
    )


@pytest.mark.parametrize("noise", ["inf", "nan"])
def test_nvbenchs_null_for_empty_lists_and_unknown_noise_are_read(tmp_path, noise):
    (tmp_path / "a.json").write_text(nvbench(noise=noise))
    assert read_samples(str(tmp_path / "a.json")).times["b s"].n == 1


@pytest.mark.parametrize("machine", ['"machine_info": null', '"machine_info": {"cpu": "x"}', '"commit_info": []'])
def test_other_information_on_the_machine_is_left_out(tmp_path, machine):
    (tmp_path / "a.json").write_text(pytest_benchmark("[1, 2]").removesuffix("}") + f", {machine}}}")
    assert not read_samples(str(tmp_path / "a.json")).about


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "name,seconds\n", "has no times; allowed: at least one"),
        ("a.csv", "name,seconds\nx,0\n", "a time of 'x' is '0'; allowed: seconds from 1e-12 to 1e+12"),
        ("a.csv", "name,seconds\nx,nan\n", "a time of 'x' is 'nan'; allowed: seconds from 1e-12 to 1e+12"),
        ("a.csv", "name,seconds\nx\n", "a time of 'x' is 'None'; allowed: seconds from 1e-12 to 1e+12"),
        (
            "a.csv",
            "name,ms\nx,1\n",
            "it lacks 'seconds'; allowed: a JSON file of nvbench or pytest-benchmark, or a CSV",
        ),
        ("a.json", "[1", "is not a file of times; allowed: a JSON file of nvbench"),
        ("a.json", "[" * 100_000, "is not a file of times; allowed: a JSON file of nvbench"),
        ("a.csv", f"name,seconds\n{'x' * 200_000},1\n", "is not a file of times; allowed: a JSON file of nvbench"),
        ("a.json", "[]", "is not a file of times; allowed: a JSON file of nvbench"),
        ("a.json", '{"benchmarks": [{"fullname": "x", "stats": {"mean": 1}}]}', "it lacks 'data'; allowed: "),
        ("a.json", '{"benchmarks": []}', "has no times; allowed: at least one"),
        ("a.json", "\x00\x01", "is not a file of times; allowed: "),
        ("a.csv", "name,seconds\nx,1e308\n", "a time of 'x' is '1e308'; allowed: seconds from 1e-12"),
        ("a.json", pytest_benchmark("[]"), "the times of 'x' are '[]'; allowed: a list of seconds"),
        ("a.json", pytest_benchmark('"12"'), "the times of 'x' are '12'; allowed: a list of seconds"),
        ("a.json", pytest_benchmark("[true]"), "a time of 'x' is 'True'; allowed: seconds from 1e-12"),
        ("a.json", pytest_benchmark(f"[{'9' * 5000}]"), "a time of 'x' is 'inf'; allowed: seconds from 1e-12"),
        ("a.json", pytest_benchmark("[1]", times=2), "has the name 'x' twice; allowed: each name once"),
        ("a.json", nvbench(count="-3"), "the sample size of 'b s' is '-3'; allowed: numbers from 1 to 1e+12"),
        ("a.json", nvbench(count="1" * 400), "the sample size of 'b s' is '1111"),
        ("a.json", nvbench(noise="abc"), "the relative deviation of 'b s' is 'abc'; allowed: numbers from 0 to 1e+06"),
        ("a.json", nvbench(noise="1e300"), "the relative deviation of 'b s' is '1e300'; allowed: numbers from 0"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, capsys, name, content, sentence):
    (tmp_path / name).write_text(content)
    as_csv(tmp_path / "other.csv", "first")
    assert main([str(tmp_path / name), str(tmp_path / "other.csv")]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
