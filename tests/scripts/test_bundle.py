"""Bundles: packed from recorded rows, checked as somebody else's, and what nobody should be able to hand in."""

import gzip
import hashlib
import json
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import warnings
import zipfile
from zipfile import ZipFile, ZipInfo

import pytest
from rocrate.rocrate import ROCrate
from rocrate.vocabs import RO_CRATE

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan, plan_to_json
from scripts.bundle import read
from scripts.bundle.check import FAILED, PASSED, UNDECIDED, findings, main, metadata
from scripts.bundle.make import CHECKS, METADATA, PLAN, bundle
from scripts.bundle.promote import promote, promote_bundle
from scripts.stages.self_checks import write_checks
from scripts.stages.tables import merge_all
from scripts.tools import archive
from tests import golden
from tests.samples import ROOT, config
from tests.support.files import seal

RECORDED = ROOT / "recorded/nvidia-h200"
SMALL = ("accumulation", "autocast_dtypes")
TRACE = "traces/training_step.json.gz"
CSV = "raw/accumulation/all.csv"
CARD = "raw/card/20261124T070031-all.csv"


def results_of(experiments, folder, checks=None):
    """The recorded rows of some experiments as a machine's results, with their plan, coverage and self-checks.

    Those may be in a file, in which case they are not computed.
    """
    planned = config(recorded="nvidia-h200")
    planned["experiments"] = {
        name: grids if name in experiments else {"smoke": {}, "handout": {}}
        for name, grids in planned["experiments"].items()
    }
    for name in filter(lambda name: (RECORDED / "raw" / name).exists(), experiments):
        shutil.copytree(RECORDED / "raw" / name, folder / "raw" / name)
    for name in ("raw/card", "traces"):
        shutil.copytree(RECORDED / name, folder / name)
    (folder / "plan.json").write_text(plan_to_json(make_plan(planned, recorded=ROOT / "recorded")))
    csvs = [str(path) for path in sorted(folder.glob("raw/*/*.csv")) if path.parent.name in EXPERIMENTS]
    tables = {name: f"{folder}/tables/{name}.csv" for name in EXPERIMENTS}
    merge_all(f"{folder}/plan.json", csvs, f"{folder}/tables", f"{folder}/coverage.csv", 1)
    if checks:
        shutil.copyfile(checks, folder / "checks.csv")
    else:
        write_checks(tables, f"{folder}/checks.csv")
    return folder


def bundle_of(folder, output):
    csvs = [str(path) for path in sorted(folder.glob("raw/*/*.csv")) if path.parent.name in EXPERIMENTS]
    bundle(csvs, *(f"{folder}/{name}" for name in ("plan.json", "coverage.csv", "checks.csv")), output=str(output))
    return output


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return results_of(SMALL, tmp_path_factory.mktemp("results") / "nvidia-h200")


@pytest.fixture(scope="module")
def good(results):
    return bundle_of(results, results / "good.zip")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, in which nothing may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def contents(path):
    with ZipFile(path) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def zipped(path, files):
    archive.pack(path, files)
    return path


def check(path):
    with read.opened(path) as bundle:
        return findings(bundle)


def test_recorded_rows_are_packed_checked_and_promoted(results, good, tmp_path):
    by_aspect = {finding.aspect: finding for finding in check(good)}
    assert {aspect for aspect in by_aspect if by_aspect[aspect].outcome != PASSED} <= {"code", "coverage", "origin"}
    assert by_aspect["origin"].outcome == UNDECIDED
    assert "1 x NVIDIA H200, Intel(R) Xeon(R) Processor, NVIDIA driver 580" in by_aspect["machine"].detail

    recorded = tmp_path / "recorded/nvidia-h200"
    copies = promote_bundle(good, tmp_path / "recorded")
    wanted = {path.relative_to(results) for kind in ("raw/*/*", "traces/*") for path in results.glob(kind)}
    assert {path.relative_to(recorded) for path in copies} >= wanted
    for name in wanted:
        assert (recorded / name).read_bytes() == (results / name).read_bytes()
    assert promote_bundle(good, tmp_path / "recorded") == copies  # the same again changes nothing


def test_the_same_results_give_the_same_bytes(results, good, tmp_path):
    elsewhere = shutil.copytree(results, tmp_path / "nvidia-h200", copy_function=shutil.copyfile)
    assert bundle_of(elsewhere, tmp_path / "again.zip").read_bytes() == good.read_bytes()
    archive.unpack(good, tmp_path / "crate")
    crate = ROCrate(tmp_path / "crate")
    assert (crate.license.id, crate.root_dataset["citation"].type) == ("https://spdx.org/licenses/MIT", "File")
    assert {entity.id for entity in crate.data_entities} == contents(good).keys() - {METADATA}
    assert [each["name"] for each in crate.root_dataset["softwareRequirements"]][-2:] == ["Triton", "Python"]
    with ZipFile(good) as packed:
        (date,) = {entry.date_time[:3] for entry in packed.infolist()}
    assert "-".join(f"{part:02}" for part in date) == crate.root_dataset["datePublished"][:10]


def test_a_bundle_is_a_workflow_run_crate(good, tmp_path):
    services = pytest.importorskip("rocrate_validator.services")
    archive.unpack(good, tmp_path / "crate")
    path = tmp_path / "crate" / METADATA
    described = json.loads(path.read_text())
    # In place of RO-Crate 1.1's context, which would be fetched: the library's, of 1.3, with the profile's older name.
    workflow = {"ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow"}
    path.write_text(json.dumps(described | {"@context": [RO_CRATE["@context"], workflow, described["@context"][1]]}))
    settings = {"rocrate_uri": str(tmp_path / "crate"), "profile_identifier": "workflow-run-crate"}
    result = services.validate(settings | {"requirement_severity": "REQUIRED"})
    assert [issue.message for issue in result.get_issues() if issue.severity.name == "REQUIRED"] == []
    assert result.passed()


def test_recorded_files_are_never_replaced(results, tmp_path):
    recorded = tmp_path / "recorded/nvidia-h200"
    there = recorded / CSV
    there.parent.mkdir(parents=True)
    there.write_text("an earlier recording of the same job\n")
    with pytest.raises(ValueError, match=r"all\.csv already exists with other content; allowed: files that are not"):
        promote(results, recorded, overwrite=False)
    assert [path for path in recorded.rglob("*") if path.is_file()] == [there]
    # Nor do two files get the same cells.
    there.unlink()
    seal(shutil.copyfile(RECORDED / CSV, there.with_name("other.csv")))
    with pytest.raises(ValueError, match=r"/other\.csv, line 2: metric is 'sum', which .*/all\.csv, line 2"):
        promote(results, recorded, overwrite=False)


# What is no bundle: made of the files of a good one.


def with_entry(name, content=b"", **attributes):
    """A bundle with one more entry, whose name and attributes stay as they are."""

    def make(path, files):
        entry = ZipInfo("x")
        for attribute, value in {"filename": name, **attributes}.items():
            setattr(entry, attribute, value)
        with ZipFile(zipped(path, files), "a") as packed, warnings.catch_warnings(action="ignore"):
            packed.writestr(entry, content)

    return make


def with_files(**changed):
    """A bundle in which some files have another content, or are missing."""
    return lambda path, files: zipped(
        path, {name: text for name, text in (files | changed).items() if text is not None}
    )


def edited(name, old, new):
    """A bundle with a text in one of its files changed, and its SHA-256 with it."""

    def make(path, files):
        assert old in files[name]
        content = files[name].replace(old, new, 1)
        digest = {f"{name}.sha256": f"{hashlib.sha256(content).hexdigest()}  {name.rpartition('/')[2]}\n".encode()}
        zipped(path, files | {name: content} | (digest if f"{name}.sha256" in files else {}))

    return make


def encrypted(path, files):
    content = bytearray(zipped(path, {PLAN: b"{}"}).read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + flags] |= 1
    path.write_bytes(content)


def lying(path, files):
    """An archive whose directory says that its plan has 20 bytes."""
    size, other = (struct.pack("<I", number) for number in (len(files[PLAN]), 20))
    path.write_bytes(zipped(path, files).read_bytes().replace(size, other))


NESTED = "".join(f"[{number}," for number in range(5000)).encode()
NAMES = ["../x.csv", "raw/../../x.csv", "/etc/x.csv", r"raw\accumulation\x.csv", "raw/accumulation/.x.csv", "inner.zip",
         "raw/accumulation/", "raw/accumulation/x.csv.pickle", "raw/mine/x.csv", "raw/accumulation/x.csv\x00.exe",
         "raw/accumulation/LPT1.x.csv"]  # fmt: skip
NO_NAME, SAME = "its entry .* does not belong in a bundle; allowed:", "two of its entries have the same name"
LINK = {"external_attr": (stat.S_IFLNK | 0o777) << 16}
MANY = {f"raw/accumulation/{number}.csv": b"" for number in range(2001)}
LARGE_TRACE, FILL = gzip.compress(bytes(51 * archive.MB)), bytes(45 * archive.MB)
REFUSED = {
    "nothing": (lambda path, files: None, "there is no such file; allowed: a zip archive"),
    "an empty file": (lambda path, files: path.touch(), r"not .*\(BadZipFile\): File is not a zip file"),
    "a large archive": (lambda path, files: path.write_bytes(bytes(21 * 10**6)), "it has 21 MB; allowed: at most 20"),
    **{f"the name {name!r}": (with_entry(name), NO_NAME) for name in NAMES},
    "a file twice": (with_entry(CSV), SAME),
    "a capital": (with_entry(CSV.replace("all", "All")), SAME),
    "a link": (with_entry("raw/accumulation/x.csv", "/etc/passwd", **LINK), "its entry .* is a link, a"),
    "LZMA": (with_entry("raw/accumulation/x.csv", compress_type=zipfile.ZIP_LZMA), "its entry .* or not deflated"),
    "encrypted": (encrypted, r"not .*plan\.json.* is encrypted"),
    "a large file": (with_files(**{PLAN: bytes(60 * archive.MB)}), r"plan\.json unpacks to more than 50 MB"),
    "a large trace": (with_files(**{TRACE: LARGE_TRACE}), r"traces/.*\.json\.gz unpacks to more than 50 MB"),
    "large files": (with_files(**{f"raw/accumulation/{n}.csv": FILL for n in range(5)}), "it unpacks to 2.. MB;"),
    "many files": (with_files(**MANY), r"it has 20\d\d entries; allowed: at most 2000"),
    "a lie": (lying, r"not .*Bad CRC-32 for file 'plan\.json'"),
    "a file is missing": (with_files(**{METADATA: None}), f"it has no {METADATA}; allowed: what `snakemake bundle`"),
    "nested lists": (with_files(**{METADATA: NESTED}), rf"{METADATA}: not as .*\((RecursionError|JSONDecodeError): "),
    "no plan": (with_files(**{PLAN: b'{"machine": "cpu"}'}), rf"{PLAN}: not as .*\(KeyError: "),
    "a long number": (with_files(**{PLAN: b"9" * 5000}), rf"{PLAN}: not as .*\(ValueError: "),
    "odd cells": (edited(PLAN, b'"additions"', b'"subtractions"'), f"{PLAN}: not as .*'subtractions' is unknown"),
    "a machine outside": (edited(PLAN, b"nvidia-h200", b"../../home"), f"{PLAN}: machine is '../../home'; allowed:"),
    "another machine": (edited(PLAN, b"nvidia-h200", b"nvidia-h100"), f"{CSV}, line 2: gpu is 'NVIDIA H200'; allowed"),
    "no digest": (with_files(**{f"{CSV}.sha256": None}), "it has no CSV file, or not one for each SHA-256"),
    "one byte": (with_files(**{CSV: (RECORDED / CSV).read_bytes() + b"\n"}), f"{CSV}: changed since it was written:"),
    "one number": (edited(CSV, b",10.000133514404297,,", b",10.5,,"), f"{CSV}, line 2: median is .*; allowed: within"),
    "a faster card": (edited(CARD, b",584.", b",684."), f"{CARD}, line 28: median is 684"),
    "a digest of no card": (with_files(**{CARD: None}), "it has no CSV file, or not one for each SHA-256"),
    "no trace": (with_files(**{TRACE: gzip.compress(b"{}")}), f"{TRACE}: not a trace of PyTorch's profiler"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_bundle_is_refused_in_one_sentence(good, tmp_path, case):
    make, sentence = REFUSED[case]
    make(tmp_path / "x.zip", contents(good))
    with pytest.raises(ValueError, match=rf"^{tmp_path}/x\.zip: {sentence}") as refused:
        promote_bundle(tmp_path / "x.zip", tmp_path / "recorded")
    assert "\n" not in str(refused.value)
    assert str(tmp_path / "temporary") not in str(refused.value)
    assert not (tmp_path / "recorded").exists()


@pytest.mark.parametrize(
    ("text", "seconds", "sentence"),
    [(b"0*99999999999", 300, "it takes more than 4 GB"), (b"", 0, "it takes more than 0 seconds")],
)
def test_what_would_fill_the_memory_or_never_end_is_ended(good, tmp_path, text, seconds, sentence):
    edited(CSV, b",ok,,,", b",ok,," + text + b",")(tmp_path / "x.zip", contents(good))
    limited = f"from scripts.bundle import check, read; read.MOST_SECONDS = {seconds}; read.limit('x.zip')"
    program = f"{limited}; check.main('{tmp_path}/x.zip')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert sentence in ended.stderr


@pytest.mark.parametrize(
    ("module", "bundles", "sentence"),
    [("check", 2, "checks one bundle"), ("promote", 1, "SOURCE TARGET copies results")],
)
def test_another_number_of_bundles_is_not_skipped_in_silence(good, module, bundles, sentence):
    command = [sys.executable, "-m", f"scripts.bundle.{module}", *[str(good)] * bundles]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert sentence in ended.stderr


# What is a bundle, and cannot be believed.


def doctored(results, folder, *changes):
    """A machine's results with all occurrences of some texts in its CSV files replaced, and the digests with them."""
    shutil.copytree(results, folder)
    for path in folder.glob("raw/*/*.csv"):
        content = path.read_bytes()
        for name, old, new in changes:
            if path.match(name):
                assert old in content
                content = content.replace(old, new)
        path.write_bytes(content)
        seal(path)
    return folder


def other_crate(path, files):
    root = {"@id": "./", "@type": "Dataset", "name": "holiday pictures"}
    about = {"@id": METADATA, "@type": "CreativeWork", "about": {"@id": "./"}}
    zipped(path, files | {METADATA: json.dumps({"@context": [], "@graph": [about, root]}).encode()})


DOUBTED = {
    "a crate of something else": (other_crate, metadata),
    "another machine": (edited(METADATA, b"Measurements on NVIDIA H200", b"Measurements on NVIDIA B200"), metadata),
    "a file less": (with_files(**{TRACE: None}), metadata),
    "an entity twice": (edited(METADATA, b'"@graph": [', b'"@graph": [{"@id": "./"},'), metadata),
}


@pytest.mark.parametrize("case", DOUBTED)
def test_what_the_files_do_not_say_fails(good, tmp_path, case):
    make, aspect = DOUBTED[case]
    make(tmp_path / "x.zip", contents(good))
    with read.opened(tmp_path / "x.zip") as bundle:
        assert aspect(bundle).outcome == FAILED


def test_rows_that_make_no_sense_together_fail(good, tmp_path):
    edited(CSV, b",2026-11-21T18:53:06+00:00", b",0001-01-01T00:00:00+10:00")(tmp_path / "x.zip", contents(good))
    assert [str(finding)[:31].split() for finding in check(tmp_path / "x.zip")] == [[FAILED, "rows"]]


def test_numbers_that_cannot_be_are_named_and_not_promoted(results, tmp_path, capsys):
    folder = doctored(
        results,
        tmp_path / "nvidia-h200",
        (CSV, b"10.000133514404297", b"10.5"),
        ("*.csv", b",150754820096,", b",80000000000,"),
        (CSV, b"Intel(R) Xeon(R)", b"Intel \x1b[31m"),
    )
    made = contents(bundle_of(folder, tmp_path / "x.zip"))
    path = zipped(tmp_path / "x.zip", made | {CHECKS: b"\xff"})
    with pytest.raises(ValueError, match=r"x\.zip is not promoted: failed +metadata "):
        promote_bundle(path, tmp_path / "recorded")
    assert not (tmp_path / "recorded").exists()
    with pytest.raises(SystemExit, match=r"/x\.zip: failed: metadata, self checks, cards$"):
        main(str(path))
    lines = capsys.readouterr().out.splitlines()
    by_aspect = {line[19:32].strip(): (line[:19].strip(), line[32:]) for line in lines}
    assert by_aspect["metadata"][1] == "not of these files and rows: checks.csv: contentSize, checks.csv: sha256"
    for complaint in ("last steps equal NumPy's: ", "74.5 GiB, not between"):
        assert complaint in by_aspect["self checks"][1]
    assert by_aspect["machine"][0] == by_aspect["verdicts"][0] == UNDECIDED
    assert "several processors, so perhaps several machines" in by_aspect["machine"][1]
    assert all(line.isprintable() for line in lines)


@pytest.mark.slow
def test_a_whole_recorded_machine_passes(tmp_path):
    results = results_of(EXPERIMENTS, tmp_path / "whole" / "nvidia-h200", golden.FOLDER / "h200-checks.csv")
    outcomes = {finding.aspect: finding.outcome for finding in check(bundle_of(results, tmp_path / "x.zip"))}
    assert FAILED not in outcomes.values()
    assert {outcomes[aspect] for aspect in ("rows", "metadata", "machine", "self checks", "cards")} == {PASSED}
