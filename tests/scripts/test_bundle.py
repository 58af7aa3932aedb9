"""Bundles: packed from recorded rows and checked as a stranger's, and what nobody should be able to hand in."""

import gzip
import hashlib
import io
import itertools
import json
import shutil
import stat
import struct
import tempfile
import zipfile
from zipfile import ZipFile, ZipInfo

import pytest
from rocrate.rocrate import ROCrate

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan, plan_to_json
from scripts import archive
from scripts.bundle import CHECKS, METADATA, PLAN, bundle
from scripts.check_bundle import CANNOT_TELL, FAILED, PASSED, check, main
from scripts.limits import TooExpensive, limited
from scripts.promote import promote, promote_bundle
from scripts.read_bundle import opened
from scripts.self_checks import write_checks
from scripts.tables import merge_all
from tests import golden
from tests.samples import ROOT, config
from tests.support.seal import copy_sealed, seal

RECORDED = ROOT / "recorded/nvidia-h200"
SMALL = ("accumulation", "autocast_dtypes")
TRACE = "traces/training_step.json.gz"
CSV = "raw/accumulation/all.csv"
CARD = "card/20261124T070031"


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
    shutil.copytree(RECORDED / "card", folder / "card")
    (folder / "plan.json").write_text(plan_to_json(make_plan(planned, recorded=ROOT / "recorded")))
    csvs = [str(path) for path in sorted(folder.glob("raw/*/*.csv"))]
    tables = {name: f"{folder}/tables/{name}.csv" for name in EXPERIMENTS}
    merge_all(f"{folder}/plan.json", csvs, f"{folder}/tables", f"{folder}/coverage.csv", 1)
    if checks:
        shutil.copyfile(checks, folder / "checks.csv")
    else:
        write_checks(tables, f"{folder}/checks.csv")
    return folder


def bundle_of(folder, output):
    csvs = [str(path) for path in sorted(folder.glob("raw/*/*.csv")) if path.parent.name in EXPERIMENTS]
    made = (f"{folder}/{name}" for name in ("plan.json", "coverage.csv", "checks.csv"))
    bundle(csvs, *made, trace=str(RECORDED / TRACE), output=str(output))
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


def with_digest(files, name, content):
    """The files with another content of a CSV file, and the SHA-256 of that."""
    digest = f"{hashlib.sha256(content).hexdigest()}  {name.rpartition('/')[2]}\n"
    return files | {name: content, f"{name}.sha256": digest.encode()}


def outcomes(path):
    return {finding.aspect: finding.outcome for finding in check(path)}


def test_recorded_rows_are_packed_checked_and_promoted(results, good, tmp_path):
    found = {finding.aspect: finding for finding in check(good)}
    told = {"code", "coverage", "origin"}
    assert {finding.outcome for aspect, finding in found.items() if aspect not in told} == {PASSED}
    assert found["origin"].outcome == CANNOT_TELL
    assert "1 x NVIDIA H200, Intel(R) Xeon(R) Processor, NVIDIA driver 580" in found["machine"].detail

    copies = promote_bundle(good, tmp_path / "recorded")
    recorded = tmp_path / "recorded/nvidia-h200"
    wanted = {path.relative_to(results) for kind in ("raw/*/*", "card/*") for path in results.glob(kind)}
    assert {path.relative_to(recorded) for path in copies} >= wanted
    for path in copies:
        source = results / path.relative_to(recorded)
        assert path.read_bytes() == (source if source.exists() else RECORDED / TRACE).read_bytes()
    assert (recorded / TRACE) in copies


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


def test_the_card_of_a_run_is_packed_as_it_is_recorded(results, good, tmp_path):
    ours = shutil.copytree(results, tmp_path / "nvidia-h200", ignore=lambda folder, names: {"card"} & set(names))
    copy_sealed(RECORDED / f"{CARD}-all.csv", ours / "raw/card/all.csv")
    shutil.copyfile(RECORDED / f"{CARD}.json", ours / "card.json")
    packed = contents(bundle_of(ours, tmp_path / "x.zip"))
    cards = {name: content for name, content in contents(good).items() if name.startswith(CARD)}
    assert {name: content for name, content in packed.items() if name.startswith("card/")} == cards
    (ours / "card.json").write_bytes((ours / "card.json").read_bytes().replace(b'"samples": 49', b'"samples": 50'))
    with pytest.raises(
        ValueError, match=r"card\.json: not the card of its rows; allowed: as `snakemake card` wrote it"
    ):
        bundle_of(ours, tmp_path / "x.zip")


def test_recorded_files_are_never_replaced(good, tmp_path):
    recorded = tmp_path / "recorded/nvidia-h200"
    there, other = recorded / CSV, recorded / "raw/accumulation/other.csv"
    there.parent.mkdir(parents=True)
    there.write_text("an earlier recording of the same job\n")
    with pytest.raises(ValueError, match=r"all\.csv is there already, with other content; allowed: files that are not"):
        promote_opened(good, recorded)
    assert [path for path in recorded.rglob("*") if path.is_file()] == [there]
    # Nor do two files get the same cells.
    there.unlink()
    copy_sealed(RECORDED / CSV, other)
    with pytest.raises(ValueError, match=r"/all\.csv, line 2: metric is 'sum', which .*other\.csv, line 2"):
        promote_opened(good, recorded)
    other.unlink()
    assert promote_opened(good, recorded) == promote_opened(good, recorded)  # the same again changes nothing


def promote_opened(path, recorded):
    with opened(path) as found:
        return promote(found.folder, recorded, overwrite=False)


# What is no zip archive of plain files, within limits: made of the bytes and the files of a good bundle.


def with_entry(name, content=b"", **attributes):
    """A bundle with one more entry, whose name and attributes stay as they are."""

    def make(path, good):
        path.write_bytes(good)
        entry = ZipInfo("x")
        for attribute, value in {"filename": name, **attributes}.items():
            setattr(entry, attribute, value)
        with ZipFile(path, "a") as packed:
            packed.writestr(entry, content)

    return make


def with_files(**changed):
    """A bundle in which some files have another content."""

    def make(path, good):
        zipped(path, contents(io.BytesIO(good)) | changed)

    return make


def encrypted(path, good):
    with_only_a_plan(path, zipfile.ZIP_STORED)
    packed = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        packed[packed.index(signature) + flags] |= 1
    path.write_bytes(packed)


def with_only_a_plan(path, compression):
    with ZipFile(path, "w", compression=compression) as packed:
        packed.writestr(PLAN, "{}")


def lying(path, good):
    """An archive whose directory tells that its plan has 20 bytes."""
    files = contents(io.BytesIO(good))
    told, held = (struct.pack("<I", size) for size in (len(files[PLAN]), 20))
    path.write_bytes(zipped(path, files).read_bytes().replace(told, held))


def with_large_trace(path, good):
    """An archive with a trace that is not packed again, and unpacks to more than a file may have."""
    files = contents(io.BytesIO(good))
    with ZipFile(zipped(path, {name: files[name] for name in files if name != TRACE}), "a") as packed:
        packed.writestr(TRACE, gzip.compress(bytes(51 * archive.MB)))


OUTSIDE = ["../x.csv", "raw/../../x.csv", "/etc/x.csv", r"raw\accumulation\x.csv", "C:x.csv", "raw/accumulation/.x.csv"]
STRANGE = ["raw/accumulation/", "raw/accumulation/x.csv.pickle", "raw/accumulation/ü.csv", "raw/mine/x.csv",
           "raw/accumulation/x.csv\x00.exe", "inner.zip", "traces/x.json", "not_measured.yaml"]  # fmt: skip
DEVICE, SAME = "is a device's name", f"is on some disks the same file as '{CSV}'"
MANY = {f"raw/accumulation/{number}.csv": b"" for number in range(2001)}
LINK = {"external_attr": (stat.S_IFLNK | 0o777) << 16}
NO_ARCHIVES = {
    "nothing": (lambda path, good: None, "there is no such file; allowed: a zip archive"),
    "a folder": (lambda path, good: path.mkdir(), "there is no such file; allowed: a zip archive"),
    "an empty file": (lambda path, good: path.touch(), r"not a whole zip archive \(File is not a zip file\)"),
    "cut": (lambda path, good: path.write_bytes(good[: len(good) // 2]), "not a whole zip archive"),
    "a bit": (lambda path, good: path.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:]), "not a whole zip"),
    "large": (lambda path, good: path.write_bytes(bytes(21 * 10**6)), "it has 21 MB; allowed: at most 20"),
    **{
        f"the name {name!r}": (with_entry(name), "its entry .* is none of a bundle's; allowed: raw/EXPERIMENT/JOB.csv")
        for name in [*OUTSIDE, *STRANGE]
    },
    "con": (with_entry("raw/accumulation/con.csv"), f"its entry 'raw/accumulation/con.csv' {DEVICE}"),
    "LPT1": (with_entry("raw/accumulation/LPT1.x.csv"), f"its entry 'raw/accumulation/LPT1.x.csv' {DEVICE}"),
    "a file twice": (with_entry(CSV), f"its entry '{CSV}' {SAME}"),
    "a capital": (with_entry(CSV.replace("all", "All")), f"its entry 'raw/accumulation/All.csv' {SAME}"),
    "a link": (
        with_entry("raw/accumulation/x.csv", "/etc/passwd", **LINK),
        r"its entry 'raw/accumulation/x\.csv' is a link, a folder or a device",
    ),
    "encrypted": (encrypted, r"its entry 'plan\.json' is encrypted; allowed: what anybody can read"),
    "LZMA": (
        lambda path, good: with_only_a_plan(path, zipfile.ZIP_LZMA),
        r"its entry 'plan\.json' is packed by method 14; allowed: stored or deflated",
    ),
    "a large file": (
        with_files(**{PLAN: bytes(60 * archive.MB)}),
        r"its entry 'plan\.json' has 60 MB; allowed: at most 50",
    ),
    "zeros": (with_files(**{PLAN: bytes(10**6)}), r"its entry 'plan\.json' unpacks to over 100 times its size"),
    "many files": (with_files(**MANY), r"it has 20\d\d entries; allowed: at most 2000"),
    "a lie": (lying, r"not a whole zip archive \(Bad CRC-32 for file 'plan\.json'\)"),
    "a large trace": (
        with_large_trace,
        r"traces/training_step\.json\.gz: it unpacks to more than 50 MB; allowed: up to that",
    ),
}


@pytest.mark.parametrize("case", NO_ARCHIVES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_is_no_archive_of_plain_files_is_refused(good, tmp_path, case):
    make, sentence = NO_ARCHIVES[case]
    make(tmp_path / "x.zip", good.read_bytes())
    with pytest.raises(ValueError, match=rf"/x\.zip: {sentence}"):
        check(tmp_path / "x.zip")


def test_all_files_together_have_a_limit(good, monkeypatch):
    monkeypatch.setattr(archive, "LARGEST_TOTAL_MB", 0.1)
    with pytest.raises(ValueError, match=r"it unpacks to \d+ MB; allowed: at most 0\.1"):
        check(good)


# What is an archive, and no bundle.


def edited(name, old, new):
    """Files with a text in one of them changed, and its SHA-256 with it."""

    def edit(files):
        assert old in files[name]
        content = files[name].replace(old, new, 1)
        return with_digest(files, name, content) if name.endswith(".csv") and "/" in name else files | {name: content}

    return edit


def other_crate(files):
    root = {"@id": "./", "@type": "Dataset", "name": "holiday pictures"}
    about = {"@id": METADATA, "@type": "CreativeWork", "about": {"@id": "./"}}
    return files | {METADATA: json.dumps({"@context": [], "@graph": [about, root]}).encode()}


NESTED = "".join(f"[{number}," for number in range(5000)).encode()
ADDRESS = b'"http://example.org"'
NO_BUNDLES = {
    "a file is missing": (lambda files: {PLAN: files[PLAN]}, f"it has no {METADATA}; allowed: what `snakemake bundle`"),
    "a crate of something else": (other_crate, f"{METADATA}: not the description of a bundle"),
    "an address": (lambda files: files | {METADATA: ADDRESS}, f"{METADATA}: it holds 'http://example.org'"),
    "no JSON": (lambda files: files | {METADATA: NESTED}, f"{METADATA}: .*; allowed: JSON"),
    "no plan": (lambda files: files | {PLAN: b'{"machine": "cpu"}'}, f"{PLAN}: not the plan of a run"),
    "a plan of odd cells": (edited(PLAN, b'"additions"', b'"subtractions"'), f"{PLAN}: not the plan of a run"),
    "a machine outside": (edited(PLAN, b"nvidia-h200", b"../../home"), f"{PLAN}: machine is '../../home'; allowed:"),
    "another machine": (edited(PLAN, b"nvidia-h200", b"nvidia-h100"), "line 2: gpu is 'NVIDIA H200'; allowed"),
    "two machines": (edited(CSV, b",NVIDIA H200,", b",NVIDIA H100,"), "line 2: gpu is 'NVIDIA H100'; allowed"),
    "no digest": (
        lambda files: {name: content for name, content in files.items() if name != f"{CSV}.sha256"},
        "it has no CSV file, or not one for each SHA-256",
    ),
    "one byte": (
        lambda files: files | {CSV: files[CSV].replace(b"bf16", b"bf17", 1)},
        f"{CSV}: changed since it was written: its SHA-256 is",
    ),
    "one number": (edited(CSV, b",10.000133514404297,,", b",10.5,,"), "line 2: mean is 10.5; allowed: within 0"),
    "a time before all": (edited(CSV, b",2026-11-21T18:53:06+00:00", b",0001-01-01T00:00:00+10:00"), "utc is '0001-"),
    "a column": (edited(CSV, b"metric,", b"metrics,"), f"{CSV}, line 1: column 'metric' is missing"),
    "not UTF-8": (edited(CSV, b"NVIDIA", b"\xff\xfe"), f"{CSV}, line .*: 'utf-8' codec can't decode byte 0xff"),
    "verdicts not UTF-8": (lambda files: files | {CHECKS: b"\xff"}, f"{CHECKS}: .* allowed: UTF-8"),
    "another index": (
        lambda files: files | {"constraints.txt": b"torch @ https://example.org/torch.whl\n"},
        "constraints.txt: has the line 'torch @ https://example.org/torch.whl'; allowed: package==version",
    ),
    "no card": (lambda files: files | {f"{CARD}.json": b"{}"}, f"{CARD}.json: it: .*; allowed: a card by"),
    "a card of nested lists": (lambda files: files | {f"{CARD}.json": NESTED}, f"{CARD}.json: .*; allowed: a card by"),
    "a faster card": (edited(f"{CARD}.json", b'"value": 5', b'"value": 6'), f"{CARD}.json: not the card of its rows"),
    "a card's one byte": (
        lambda files: files | {f"{CARD}-all.csv": files[f"{CARD}-all.csv"] + b"\n"},
        f"{CARD}-all.csv: changed since it was written",
    ),
    "rows of no card": (
        lambda files: {name: content for name, content in files.items() if name != f"{CARD}.json"},
        f"{CARD}-all.csv belongs to no card",
    ),
    "a trace of nothing": (
        lambda files: files | {TRACE: gzip.compress(b"{}")},
        f"{TRACE}: it has no list 'traceEvents'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_BUNDLES)
def test_what_is_no_bundle_is_refused_in_one_sentence(good, tmp_path, case):
    change, sentence = NO_BUNDLES[case]
    path = zipped(tmp_path / "x.zip", change(contents(good)))
    with pytest.raises(ValueError, match=rf"^{path}: ({CSV}, )?{sentence}") as refused:
        check(path)
    assert "\n" not in str(refused.value)
    assert str(tmp_path / "temporary") not in str(refused.value)
    with pytest.raises(ValueError, match=sentence):
        promote_bundle(path, tmp_path / "recorded")
    assert not (tmp_path / "recorded").exists()


def test_what_would_fill_the_memory_or_never_end_is_ended(good, tmp_path):
    many = edited(CSV, b",ok,,,", b",ok,,0*99999999999,")
    path = zipped(tmp_path / "x.zip", many(contents(good)))
    with pytest.raises(TooExpensive, match="it takes more than 4 GB of memory; allowed: less"):
        check(path)
    with pytest.raises(TooExpensive, match="it takes more than 0 seconds of processor time"), limited(0, 4):
        any(number < 0 for number in itertools.count())


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


def test_numbers_that_cannot_be_are_told_and_not_promoted(results, tmp_path, capsys):
    folder = doctored(
        results,
        tmp_path / "nvidia-h200",
        (CSV, b"10.000133514404297", b"10.5"),
        ("*.csv", b",150754820096,", b",80000000000,"),
        (CSV, b"Intel(R) Xeon(R)", b"Intel \x1b[31m"),
    )
    made = contents(bundle_of(folder, tmp_path / "x.zip"))
    path = zipped(tmp_path / "x.zip", made | {PLAN: made[PLAN] + b" "})
    with pytest.raises(SystemExit, match=r"/x\.zip: failed: metadata, self checks, data sheet$"):
        main(str(path))
    lines = capsys.readouterr().out.splitlines()
    found = {line[13:26].strip(): (line[:13].strip(), line[26:]) for line in lines}
    assert found["metadata"] == (FAILED, "not of these files and rows: plan.json: contentSize, plan.json: sha256")
    assert (
        "the accumulated sums, their errors and last steps are those that NumPy computes: " in found["self checks"][1]
    )
    assert "74.5 GiB, not between" in found["data sheet"][1]
    assert found["machine"][0] == CANNOT_TELL
    assert "several processors, so perhaps several machines" in found["machine"][1]
    assert all(line.isprintable() for line in lines)
    with pytest.raises(ValueError, match=r"x\.zip is not promoted: failed +metadata "):
        promote_bundle(path, tmp_path / "recorded")
    assert not (tmp_path / "recorded").exists()


def test_what_agrees_with_itself_passes(results, good, tmp_path):
    lie = doctored(results, tmp_path / "nvidia-h200", ("*.csv", b",580.159.04,", b",580.159.05,"))
    assert outcomes(bundle_of(lie, tmp_path / "x.zip")) == outcomes(good)


@pytest.mark.slow
def test_a_whole_recorded_machine_passes(tmp_path):
    results = results_of(EXPERIMENTS, tmp_path / "whole" / "nvidia-h200", golden.FOLDER / "h200-checks.csv")
    found = outcomes(bundle_of(results, tmp_path / "x.zip"))
    assert FAILED not in found.values()
    assert {found[aspect] for aspect in ("rows", "metadata", "machine", "self checks", "data sheet", "cards")} == {
        PASSED
    }
    assert found["origin"] == CANNOT_TELL
