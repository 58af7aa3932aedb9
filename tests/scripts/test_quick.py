"""At scale `quick` one GPU answers what it answers at scale `handout`."""

import importlib

import pytest

from cs336_systems.plan import make_plan
from scripts.rendering.answer import answers_of
from scripts.rendering.contents import read_contents
from scripts.views.data import at_one_setting, frame
from tests.samples import ROOT, config, rows_of


def answered(scale):
    """The sub-questions that one H200 answers at a scale, from recorded rows."""
    plan = make_plan(config(machine="1 x NVIDIA H200", scale=scale))
    tables = {}
    for name, jobs in plan.jobs.items():
        cells = [cell for job in jobs.values() if not plan.obstacle(job) for cell in job.cells]
        tables[name] = at_one_setting(name, frame(name, rows_of(cells)))
    return {
        f"{section}.{name}"
        for section in read_contents(ROOT / "report/contents.yaml").sections
        for name, answer in answers_of(importlib.import_module(f"scripts.answers.{section}").answers(tables)).items()
        if answer.verdict
    }


@pytest.mark.slow
def test_quick_answers_what_the_handout_scale_does(monkeypatch):
    monkeypatch.chdir(ROOT)
    whole = answered("handout")
    assert len(whole) > 50
    assert answered("quick") >= whole
