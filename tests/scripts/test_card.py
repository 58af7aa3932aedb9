"""The card's verdict: faults planted in a recorded H200's rows are named rightly, and what is normal is no fault."""

import json
import random
import re

import pytest
from pypdfium2 import PdfDocument

from cs336_systems.experiments.card import Card
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import make_row, read_jobs
from scripts.bundle.promote import promote
from scripts.card.__main__ import write_card
from scripts.card.checks import possible
from scripts.card.document import SCHEMA, card_of, check, read_card, references_of
from scripts.card.lines import RATES
from scripts.card.record import RecordedCard
from tests.samples import ROOT, provenance
from tests.support.planted_runs import scaled
from tests.support.seal import copy_sealed

FOLDER = ROOT / "recorded/nvidia-h200/card"
CSV = FOLDER / "20261124T070130-all.csv"
"""A card with every instrument."""
ROWS = read_jobs(Card, [CSV])
REFERENCES = references_of("NVIDIA H200", "", ROOT / "recorded")
CLOCK = {(row.work, row.device): row.median for row in ROWS if row.metric == "sm_clock"}


def planted(rates=None, facts=None, state=None, throttled=None, rows=ROWS):
    """Rows with some faults.

    Args:
        rates: factors, by instrument or by (instrument, work); of all with "all".
        facts: values by name.
        state: values by metric.
        throttled: throttle reasons, which take the place of all that the driver has named.
        rows: what they are planted in.
    """
    rates, facts, state = rates or {}, facts or {}, state or {}
    found = []
    for row in rows:
        factor = rates.get((row.instrument, row.work), rates.get(row.instrument, rates.get("all", 1.0)))
        if row.metric in RATES and row.status == "ok":
            row = scaled(row, factor)
            if throttled is not None:
                found += [throttle(row, *each) for each in throttled.items()]
        elif row.metric == "fact" and row.about in facts:
            row = row.model_copy(update={"value": facts[row.about], "status": "ok", "n": 1, "message": ""})
        elif row.metric in state and row.work:
            row = scaled(row, state[row.metric] / row.median)
        elif row.metric == "throttled" and throttled is not None:
            continue
        found.append(row)
    return found


def throttle(row, reason, share):
    """A row that names a throttle reason during the work of another row."""
    details = {"device": row.device, "work": row.work, "about": reason}
    measurement = summarize("throttled", "share", [share], details=details)
    return make_row(Card(instrument=row.instrument), measurement, provenance(gpu=row.gpu))


def verdict(rows, references=REFERENCES):
    card = card_of(rows, references)
    check(card, "the card")
    return card["verdict"]


def causes(found):
    return {(finding["outcome"], finding["cause"]) for finding in found["findings"]}


def test_a_recorded_card_is_healthy():
    found = verdict(ROWS)
    assert (found["outcome"], found["findings"]) == ("healthy", [])


COMPUTE = {"matmul": 0.6, "attention": 0.6, "training": 0.6}
FAULTS = {
    "power limit": (
        {
            "rates": COMPUTE,
            "facts": {"power_limit": "350"},
            "state": {"sm_clock": 1100, "power": 348},
            "throttled": {"SW power cap": 1.0},
        },
        {("slowed", "power limit"), ("misconfigured", "power cap")},
        ["SM clock 1100 of ", "power 348 of 350 W", "throttle reason: SW power cap for 100 % of the time"],
    ),
    "power limit of the module": (
        {"rates": COMPUTE, "state": {"sm_clock": 1200, "power": 350}, "throttled": {"SW power cap": 0.9}},
        {("slowed", "power limit")},
        ["SM clock 1200 of ", "power 350 of 700 W"],
    ),
    "clock limit": (
        {"rates": COMPUTE, "state": {"sm_clock": 1200, "power": 350}, "throttled": {}},
        {("slowed", "clock limit")},
        ["SM clock 1200 of "],
    ),
    "heat": (
        {
            "rates": COMPUTE,
            "state": {"sm_clock": 1200, "temperature": 91},
            "throttled": {"SW thermal slowdown": 0.7, "SW power cap": 0.3},
        },
        {("slowed", "heat")},
        ["91 °C", "SW thermal slowdown for 70 % of the time"],
    ),
    "power brake": (
        {"rates": COMPUTE, "state": {"sm_clock": 900}, "throttled": {"HW power brake": 1.0, "HW slowdown": 1.0}},
        {("slowed", "power brake")},
        ["HW power brake for 100 % of the time"],
    ),
    "neighbour": (
        {"rates": {"all": 0.5}, "facts": {"idle_utilization": "97.0", "other_processes": "2"}},
        {("slowed", "neighbour")},
        ["2 other processes on it; busy for 97 % of a second"],
    ),
    "slow copy": (
        {"rates": {("memory", "copy"): 0.8}},
        {("slowed", "memory")},
        ["memory, copy: 80 % of"],
    ),
    "memory clock": (
        {"rates": {"memory": 0.6}, "state": {"memory_clock": 1600}},
        {("slowed", "memory clock")},
        ["memory clock 1600 of "],
    ),
    "PCIe width": (
        {"rates": {"transfers": 0.25}, "state": {"link_width": 4}},
        {("slowed", "PCIe width")},
        ["PCIe x4 of 16 lanes"],
    ),
    "host": ({"rates": {("launches", "by the host"): 0.4}}, {("slowed", "host")}, ["launches, by the host: "]),
    "MIG": ({"rates": {"all": 0.2}, "facts": {"mig": "on"}}, {("misconfigured", "MIG")}, ["MIG"]),
    "persistence mode": (
        {"facts": {"persistence_mode": "off", "display": "off"}},
        {("misconfigured", "persistence mode")},
        ["persistence mode is off"],
    ),
    "compute mode": (
        {"facts": {"compute_mode": "exclusive process"}},
        {("misconfigured", "compute mode")},
        ["exclusive process"],
    ),
    "old driver": ({"facts": {"driver_cuda": "12.4"}}, {("misconfigured", "old driver")}, ["knows CUDA 12.4"]),
    "memory errors": ({"facts": {"uncorrected_errors": "3"}}, {("faulty", "memory errors")}, ["3 uncorrectable"]),
    "remapping": ({"facts": {"remapping_pending": "on"}}, {("faulty", "memory errors")}, ["wait to be remapped"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_evidence(name):
    change, expected, evidence = FAULTS[name]
    found = verdict(planted(**change))
    assert causes(found) == expected
    assert found["outcome"] in {outcome for outcome, _ in expected}
    said = " ".join(finding["evidence"] for finding in found["findings"])
    assert all(part in said for part in evidence), said


def test_tf32_that_is_forced_on_is_named():
    rows = [row.model_copy(update={"tf32": True}) for row in ROWS]
    assert causes(verdict(rows)) == {("misconfigured", "TF32")}


@pytest.mark.parametrize("seed", range(20))
def test_three_percent_of_drift_are_normal(seed):
    noise = random.Random(seed)
    drift = noise.uniform(0.97, 1.0)
    rates = {(row.instrument, row.work): drift * noise.uniform(0.985, 1.015) for row in ROWS}
    assert verdict(planted(rates=rates))["outcome"] == "healthy"


def of_four(slow, factor):
    """Rows of four GPUs, one of which is slow."""
    return [
        row.model_copy(update={"device": str(gpu)})
        for gpu in range(4)
        for row in (planted(rates=dict.fromkeys(COMPUTE, factor)) if gpu == slow else ROWS)
        if row.device == "0"
    ]


@pytest.mark.parametrize("references", [REFERENCES, []], ids=["recorded", "data sheet"])
@pytest.mark.parametrize("slow", range(4))
def test_the_slow_one_of_four_is_found(slow, references):
    card = card_of(of_four(slow, 0.8), references)
    assert [gpu["outcome"] for gpu in card["gpus"]] == ["slowed" if gpu == slow else "healthy" for gpu in range(4)]
    assert {finding["gpu"] for finding in card["verdict"]["findings"]} == {str(slow)}
    assert f"(GPU {slow})" in card["verdict"]["sentence"]


def of_pairs(slow, rate=200.0):
    """Rows of an all-reduce of each pair of four GPUs, some of them slow."""
    rows = []
    for pair in ("0-1", "0-2", "0-3", "1-2", "1-3", "2-3"):
        details = {"device": pair, "work": "NCCL, two GPUs"}
        measurement = summarize("bandwidth", "GB/s", [rate if pair in slow else 330.0] * 5, details=details)
        rows.append(make_row(Card(instrument="all_reduce"), measurement, provenance(gpu="NVIDIA H200")))
    return rows


@pytest.mark.parametrize(
    ("slow", "found"), [((), []), (("0-3", "1-3", "2-3"), ["3"]), (("1-2",), ["1-2"]), (("0-1", "2-3"), ["0-1", "2-3"])]
)
def test_a_slow_link_is_found_by_its_pair_or_its_gpu(slow, found):
    findings = verdict([*of_four(0, 1.0), *of_pairs(slow)])["findings"]
    assert [finding["gpu"] for finding in findings] == found
    assert {finding["cause"] for finding in findings} <= {"link to other GPUs"}


def test_what_the_driver_does_not_report_is_no_fault():
    reason = "the driver does not report it: Insufficient Permissions"
    silent = {"status": "skipped", "value": "", "n": 0, "message": reason}
    rows = [
        row.model_copy(update=silent) if row.metric == "fact" else row
        for row in ROWS
        if row.metric in (*RATES, "fact", "wall")
    ]
    card = card_of(rows, REFERENCES)
    assert (card["verdict"]["outcome"], card["verdict"]["findings"]) == ("healthy", [])
    assert set(card["gpus"][0]["unknown"].values()) == {reason}


def test_a_gpu_that_disappears_costs_the_lines_after_it():
    lost = {"status": "failed", "message": "CUDA error: unspecified launch failure", "median": None}
    rows = [row.model_copy(update=lost) if row.unit == "TFLOP/s" else row for row in ROWS]
    card = card_of(rows, REFERENCES)
    assert causes(card["verdict"]) == {("faulty", "works fail")}
    measured = {line["instrument"] for line in card["lines"] if line["value"]}
    assert measured == {line["instrument"] for line in card["lines"]} - {"attention", "matmul"}


def test_a_library_that_is_not_installed_is_no_fault():
    gone = {"status": "skipped", "message": "the package flash-attn-4 is not installed", "median": None}
    there = [row for row in ROWS if "FlashAttention-4" not in row.work or row.metric in RATES]
    rows = [row.model_copy(update=gone) if "FlashAttention-4" in row.work else row for row in there]
    assert verdict(rows)["outcome"] == "healthy"


def test_without_recorded_cards_the_data_sheet_is_the_reference():
    card = card_of(ROWS, [])
    assert card["reference"] == {"source": "data sheet", "cards": 0}
    assert card["verdict"]["outcome"] == "healthy"
    compared = {line["instrument"] for line in card["lines"] if line["slow"] is not None}
    assert {"matmul", "memory", "transfers"} <= compared
    slow = card_of(planted(rates={"memory": 0.5}), [])
    assert causes(slow["verdict"]) == {("slowed", "memory")}


def test_rates_and_memory_that_no_such_gpu_has_are_noticed():
    def failed(rows):
        checks = possible([RecordedCard(name="card/1.json", card=card_of(rows, []), rows=rows)])
        return [check.detail for check in checks if check.outcome == "failed"]

    assert failed(ROWS) == []
    assert "memory, copy: " in "".join(failed(planted(rates={"memory": 2.0})))
    (found,) = failed([row.model_copy(update={"gpu_memory": 80 * 10**9}) for row in ROWS])
    assert found.startswith("card/1.json: 74.5 GiB, not between")


def test_a_card_with_a_fault_is_no_reference(tmp_path):
    folder = tmp_path / "nvidia-h200/card"
    folder.mkdir(parents=True)
    for name, rows in {"1.json": ROWS, "2.json": planted(rates={"memory": 0.5})}.items():
        (folder / name).write_text(json.dumps(card_of(rows, [])))
    assert references_of("NVIDIA H200", "", tmp_path) == [read_card(folder / "1.json")]


def test_an_unknown_gpu_cannot_be_told_about():
    rows = [row.model_copy(update={"gpu": "NVIDIA Z1"}) for row in ROWS]
    found = verdict(rows, [])
    assert (found["outcome"], found["findings"]) == ("cannot be told", [])
    busy = verdict(planted(facts={"idle_utilization": "80"}, rows=rows), [])
    assert causes(busy) == {("slowed", "neighbour")}


def test_the_card_is_written_as_two_pages_a_page_and_json(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    results = tmp_path / "results"
    card = write_card([CSV], results)
    assert read_card(results / "card.json") == card
    page = (results / "card.html").read_text(encoding="utf-8")
    assert "Healthy." in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    with PdfDocument(results / "card.pdf") as pages:
        assert len(pages) == 2


def test_a_recorded_card_keeps_its_rows(tmp_path):
    results = tmp_path / "results/nvidia-h200"
    copy_sealed(CSV, results / "raw/card/all.csv")
    (results / "card.json").write_text(json.dumps(card_of(ROWS, [])), encoding="utf-8")
    promote(results, tmp_path / "recorded/nvidia-h200")
    (copy,) = (tmp_path / "recorded/nvidia-h200/card").glob("*.csv")
    assert read_jobs(Card, [copy], machine="nvidia-h200") == ROWS
    assert len(references_of("NVIDIA H200", "", tmp_path / "recorded")) == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "allowed: a card by"),
        ("[]", "is not of type 'object'"),
        ('{"version": 2}', "allowed: a card by"),
    ],
)
def test_what_is_no_card_is_refused_in_one_sentence(tmp_path, monkeypatch, content, complaint):
    monkeypatch.chdir(ROOT)
    path = tmp_path / "card.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=complaint) as refused:
        read_card(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_the_schema_says_what_each_part_is():
    schema = json.loads((ROOT / SCHEMA).read_text(encoding="utf-8"))
    line = schema["properties"]["lines"]["items"]
    assert set(line["required"]) == set(line["properties"])
    assert set(schema["required"]) == set(schema["properties"])
