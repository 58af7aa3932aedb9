"""The card's verdict: faults planted in a recorded H200's rows are named rightly, and what is normal is no fault."""

import random
import re

import pytest
import yaml
from pypdfium2 import PdfDocument

from cs336_systems.experiments.card import Card
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import make_row
from scripts.card.__main__ import write_card
from scripts.card.checks import possible
from scripts.card.lines import RATES, lines_of
from scripts.card.page import context
from scripts.card.record import read_cards, read_run
from scripts.card.verdict import decide, decide_in_order
from tests.samples import ROOT, provenance
from tests.support.planted_runs import scaled

RECORDED = ROOT / "recorded/nvidia-h200"
CSV = RECORDED / "raw/card/20261124T070130-all.csv"
"""A run with every instrument."""
ROWS = read_run([CSV])
H200 = provenance(gpu="NVIDIA H200")
REFERENCES = decide_in_order(read_cards(RECORDED, RECORDED.name)).values()


def planted(rates=None, facts=None, state=None, throttled=None, rows=ROWS):
    """Rows with some faults.

    Args:
        rates: factors by instrument, or by instrument and work; of all with "all".
        facts: values by name.
        state: values by metric.
        throttled: throttle reasons, which take the place of all that the driver has named.
        rows: what they are planted in.
    """
    rates, facts, state = rates or {}, facts or {}, state or {}
    changed = []
    for row in rows:
        factor = rates.get(row.instrument, rates.get("all", 1.0))
        factor = factor.get(row.work, 1.0) if isinstance(factor, dict) else factor
        if row.metric in RATES and row.status == "ok":
            row = scaled(row, factor)
            if throttled is not None:
                changed += [throttle(row, *each) for each in throttled.items()]
        elif row.metric == "fact" and row.about in facts:
            row = row.model_copy(update={"value": facts[row.about], "status": "ok", "n": 1, "message": ""})
        elif row.metric in state and row.work:
            row = scaled(row, state[row.metric] / row.median)
        elif row.metric == "throttled" and throttled is not None:
            continue
        changed.append(row)
    return changed


def throttle(row, reason, share):
    details = {"device": row.device, "work": row.work, "about": reason}
    measurement = summarize("throttled", "share", [share], details=details)
    return make_row(Card(instrument=row.instrument), measurement, provenance(gpu=row.gpu))


def causes(verdict):
    return {(finding.outcome, finding.cause) for finding in verdict.findings}


COMPUTE = {"matmul": 0.6, "attention": 0.6, "training": 0.6}
FAULTS = yaml.safe_load((ROOT / "tests/data/faulty_gpus.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_evidence(name):
    change = dict(FAULTS[name])
    expected, numbers = set(map(tuple, change.pop("found"))), change.pop("numbers")
    verdict = decide(planted(**change), REFERENCES)
    assert causes(verdict) == expected
    assert verdict.outcome in {outcome for outcome, _ in expected}
    shown = " ".join(finding.numbers for finding in verdict.findings)
    assert all(part in shown for part in numbers), shown


def test_tf32_that_is_forced_on_is_named():
    rows = [row.model_copy(update={"tf32": True}) for row in ROWS]
    assert causes(decide(rows, REFERENCES)) == {("misconfigured", "TF32")}


@pytest.mark.parametrize("seed", range(20))
def test_three_percent_of_drift_are_normal(seed):
    noise = random.Random(seed)
    drift = noise.uniform(0.97, 1.0)
    rates = {row.instrument: {} for row in ROWS}
    for row in ROWS:
        rates[row.instrument][row.work] = drift * noise.uniform(0.985, 1.015)
    assert decide(planted(rates=rates), REFERENCES).outcome == "healthy"


def of_four(slow, factor):
    """Rows of four GPUs; one is slow."""
    return [
        row.model_copy(update={"device": str(gpu)})
        for gpu in range(4)
        for row in (planted(rates=dict.fromkeys(COMPUTE, factor)) if gpu == slow else ROWS)
        if row.device == "0"
    ]


@pytest.mark.parametrize("references", [REFERENCES, []], ids=["recorded", "data sheet"])
@pytest.mark.parametrize("slow", range(4))
def test_the_slow_one_of_four_is_found(slow, references):
    verdict = decide(of_four(slow, 0.8), references)
    assert verdict.gpus == list("0123")
    assert [verdict.of(gpu) for gpu in "0123"] == ["slowed" if gpu == slow else "healthy" for gpu in range(4)]
    assert {finding.gpu for finding in verdict.findings} == {str(slow)}
    assert f"(GPU {slow})" in verdict.sentence


def of_pairs(slow):
    """Rows of an all-reduce of each pair of four GPUs, some of them slow."""
    rows = []
    for pair in ("0-1", "0-2", "0-3", "1-2", "1-3", "2-3"):
        details = {"device": pair, "work": "NCCL, two GPUs"}
        measurement = summarize("bandwidth", "GB/s", [200.0 if pair in slow else 330.0] * 5, details=details)
        rows.append(make_row(Card(instrument="all_reduce"), measurement, provenance(gpu="NVIDIA H200")))
    return rows


@pytest.mark.parametrize(
    ("slow", "gpus"), [((), []), (("0-3", "1-3", "2-3"), ["3"]), (("1-2",), ["1-2"]), (("0-1", "2-3"), ["0-1", "2-3"])]
)
def test_a_slow_link_is_found_by_its_pair_or_its_gpu(slow, gpus):
    findings = decide([*of_four(0, 1.0), *of_pairs(slow)], REFERENCES).findings
    assert [finding.gpu for finding in findings] == gpus
    assert {finding.cause for finding in findings} <= {"link to other GPUs"}


def test_what_the_driver_does_not_report_is_no_fault():
    silent = {"status": "skipped", "value": "", "n": 0, "message": "Insufficient Permissions"}
    rows = [
        row.model_copy(update=silent) if row.metric == "fact" else row
        for row in ROWS
        if row.metric in (*RATES, "fact", "wall")
    ]
    verdict = decide(rows, REFERENCES)
    assert (verdict.outcome, verdict.findings) == ("healthy", [])


def test_a_gpu_that_disappears_costs_the_lines_after_it():
    lost = {"status": "failed", "message": "CUDA error: unspecified launch failure", "median": None}
    rows = [row.model_copy(update=lost) if row.unit == "TFLOP/s" else row for row in ROWS]
    verdict = decide(rows, REFERENCES)
    assert causes(verdict) == {("faulty", "workloads fail")}
    measured = {line.instrument for line in verdict.lines if line.value}
    assert measured == {line.instrument for line in verdict.lines} - {"attention", "matmul"}


def test_a_library_that_is_not_installed_is_no_fault():
    gone = {"status": "skipped", "message": "the package flash-attn-4 is not installed", "median": None}
    kept = [row for row in ROWS if "FlashAttention-4" not in row.work or row.metric in RATES]
    rows = [row.model_copy(update=gone) if "FlashAttention-4" in row.work else row for row in kept]
    assert decide(rows, REFERENCES).outcome == "healthy"


def test_without_recorded_runs_the_data_sheet_is_the_reference():
    verdict = decide(ROWS)
    assert {line.expected.source for line in verdict.lines if line.expected} == {"data sheet"}
    assert verdict.outcome == "healthy"
    assert {"matmul", "memory", "transfers"} <= {line.instrument for line in verdict.lines if line.slow is not None}
    assert causes(decide(planted(rates={"memory": 0.5}))) == {("slowed", "memory")}


def test_rates_and_memory_that_no_such_gpu_has_are_noticed():
    def failed(rows):
        return [check.detail for check in possible({"card/1": rows}) if check.outcome == "failed"]

    assert failed(ROWS) == []
    assert "memory, copy: " in "".join(failed(planted(rates={"memory": 2.0})))
    (complaint,) = failed([row.model_copy(update={"gpu_memory": 80 * 10**9}) for row in ROWS])
    assert complaint.startswith("card/1: 74.5 GiB, not between")


def test_a_spread_is_half_of_the_way_between_the_percentiles():
    details = {"device": "0", "work": "copy"}
    row = make_row(
        Card(instrument="memory"), summarize("bandwidth", "GB/s", [90.0, 100.0, 110.0], details=details), H200
    )
    (line,) = lines_of([row.model_copy(update={"p20": 90.0, "p80": 110.0})])
    assert line.spread == pytest.approx(0.1)


def test_wrong_numbers_are_a_fault():
    details = {"device": "0", "work": "copy"}
    wrong = make_row(Card(instrument="memory"), summarize("wrong_numbers", "", [3.0], details=details), H200)
    assert ("faulty", "wrong results") in causes(decide([*ROWS, wrong], REFERENCES))


def test_a_card_of_another_gpu_is_no_reference():
    with pytest.raises(ValueError, match="allowed: the GPU model of the folder, nvidia-h100"):
        read_cards(RECORDED, "nvidia-h100-80gb-hbm3")


def test_a_run_with_a_fault_is_no_reference():
    slow = planted(rates={"memory": 0.5})
    alone, both = (decide(ROWS, decide_in_order(runs).values()) for runs in ({"1": ROWS}, {"1": ROWS, "2": slow}))
    assert alone.lines == both.lines


def test_an_unknown_gpu_cannot_be_decided():
    rows = [row.model_copy(update={"gpu": "NVIDIA Z1"}) for row in ROWS]
    verdict = decide(rows, REFERENCES)
    assert (verdict.outcome, verdict.findings) == ("cannot be decided", [])
    assert causes(decide(planted(facts={"idle_utilization": "80"}, rows=rows))) == {("slowed", "neighbour")}


def test_a_cpus_table_has_no_columns_of_a_driver():
    rows = [row.model_copy(update={"gpu": "", "about": "", "device": ""}) for row in ROWS if row.metric in RATES]
    table = context(decide(rows), "")["rates"]
    assert table.columns == ["workload", "rate", "± %"]
    assert {len(row) for row in table.rows} == {1, 3}


def test_the_card_is_written_as_two_pages_and_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert write_card([CSV], tmp_path / "results").outcome == "healthy"
    page = (tmp_path / "results/card.html").read_text(encoding="utf-8")
    assert "Healthy." in page
    assert "median of 3 recorded NVIDIA H200 cards" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    with PdfDocument(tmp_path / "results/card.pdf") as pages:
        assert len(pages) == 2
