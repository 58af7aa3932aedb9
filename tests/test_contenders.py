"""Registries of contenders; adding one requires its code, its entry and its test."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from cs336_systems.accounting.setting import Scheme
from cs336_systems.benchmarks import flash
from cs336_systems.benchmarks.comparison.exact_attention import require_attention
from cs336_systems.experiments.contender import Contender, Declared
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.implementations import load_path
from tests.samples import planned_cells


def entries():
    for name, experiment in EXPERIMENTS.items():
        for contender in getattr(experiment, "contenders", ()):
            if isinstance(contender, Contender):
                yield name, contender


@pytest.mark.parametrize(("experiment", "contender"), list(entries()), ids=lambda part: getattr(part, "name", part))
def test_each_has_a_builder_a_title_an_identity_and_a_scheme(experiment, contender):
    assert callable(load_path(contender.builder))
    assert contender.title
    assert not contender.own
    others = [other for other in EXPERIMENTS[experiment].contenders if other is not contender]
    key = getattr(contender, "key", contender.name)
    assert key not in [getattr(other, "key", other.name) for other in others]
    # What PyTorch runs for ours on a GPU has no name of its own; a library's would be another if it fell back.
    if experiment == Flash.name and contender.foreign:
        assert contender.kernel
    if isinstance(contender, Declared):
        where, allowed = f"scheme of contender {key} of {experiment}", get_args(Scheme)
        assert contender.scheme in allowed, f"{where} is {contender.scheme!r}; allowed: {', '.join(allowed)}"


def test_a_contender_without_scheme_has_no_closed_form():
    forgotten = replace(EXPERIMENTS["fsdp"].contenders[0], scheme=None)
    with pytest.raises(ValueError, match="scheme of contender none is None; allowed: alone, "):
        forgotten.setting(EXPERIMENTS["fsdp"]())


def test_traits_follow_from_what_contenders_declare():
    cell = EXPERIMENTS["data_parallel"]()
    declared = {each.key: each for each in cell.contenders}
    after_backward = {key for key, each in declared.items() if each.after_backward(cell)}
    assert after_backward & {"none", "naive", "flat", "overlapped", "bucketed 100", "ddp 25"} == {"naive", "flat"}
    assert not declared["symmetric_memory 100"].disturbs(cell)
    assert declared["bucketed 100"].disturbs(cell)
    assert all(each.whole_state for each in cell.contenders)


def on_this_processor():
    """The contenders of attention that run on a CPU; compiling one takes long."""
    for contender in Flash.contenders:
        if "cpu" in contender.devices:
            marks = pytest.mark.slow if contender.name.endswith("_compiled") else ()
            yield pytest.param(contender.name, marks=marks)


@pytest.mark.parametrize("name", on_this_processor())
def test_each_of_attention_computes_attention(name):
    for causal in (False, True):
        cell = Flash(sequence=40, d=16, heads=2, precision="fp32", causal=causal, implementation=name)
        require_attention(flash.build(cell), flash.make_inputs(cell, torch.device("cpu")), is_causal=causal)


def test_each_of_attention_is_measured():
    measured = {cell.implementation for cell in planned_cells(Flash.name, "handout")}
    missing = {contender.name for contender in Flash.contenders} - measured
    assert not missing, f"no grid of flash in config.yaml measures {missing}: add them to an `implementation`"
