"""Reading a trace: of a step on this processor, and of traces from an H200 doctored to lack something."""

import contextlib
import json
from collections import Counter

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from cs336_systems.accounting.transformer import forward_products
from cs336_systems.attention import plain_attention
from cs336_systems.measure.compact_trace import compact, write_events
from cs336_systems.measure.kernel_names import is_product
from cs336_systems.measure.kernel_profile import recording, run_steps
from cs336_systems.measure.trace import GRADIENT_ACCUMULATION, attribute, read_events
from cs336_systems.ranges import listening, named_range
from cs336_systems.record.measurement import STAGES
from cs336_systems.sizes import ModelShape
from cs336_systems.training_step import TrainingStep
from tests.support.models import ours
from tests.traces import FOLDER, by_stage, counted, make_step, record

CPU = torch.device("cpu")
SHAPE = ModelShape(d_model=12, d_ff=20, num_layers=3, num_heads=2)


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Two training steps on the CPU, as the profiler wrote them."""
    torch.manual_seed(0)
    model = ours(SHAPE, 50, 7)
    step = TrainingStep(model, torch.randint(50, (2, 8)), optimizer=torch.optim.AdamW(model.parameters(), fused=True))
    stages = step.stages("train_step")
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    with recording(step.forward_model, CPU, path):
        run_steps(stages, 2, CPU)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return read_events(path)


def origins(trace):
    return [(kernel.name, kernel.stage, kernel.range, kernel.operator, kernel.lane) for kernel in trace.kernels]


def test_the_products_of_each_pass_are_those_of_the_models_structure(events):
    trace = attribute(events)
    assert [(stage.name, stage.step) for stage in trace.stages] == [(name, step) for step in (0, 1) for name in STAGES]
    products = forward_products(SHAPE)
    assert products == SHAPE.num_layers * (7 + 2) + 1
    launches = Counter(
        {place: number for place, number in counted(trace).items() if place[0] in ("forward", "backward")}
    )
    assert by_stage(launches) == {"forward": 2 * products, "backward": 2 * 2 * products}
    assert launches["forward", "blocks.feed_forward.gate"] == 2 * SHAPE.num_layers
    assert launches["backward", "scores"] == 2 * 2 * SHAPE.num_layers
    assert launches["backward", "lm_head"] == 2 * 2


def test_every_operator_of_a_cpu_is_attributed(events):
    trace = attribute(events)
    assert not trace.on_device
    assert all(kernel.range for kernel in trace.kernels if kernel.stage)
    ranges = {kernel.range for kernel in trace.kernels if kernel.stage and kernel.stage.name == "backward"}
    assert {"blocks.attention.rope", "final_norm", "token_embedding", "loss", GRADIENT_ACCUMULATION} <= ranges
    assert "optimizer" not in ranges
    assert not any("#" in kernel.range for kernel in trace.kernels)  # PyTorch's own Optimizer.step#AdamW.step


def test_operators_are_timed_without_those_that_they_call(events):
    trace = attribute(events)
    for stage in trace.stages:
        inside = sum(kernel.duration for kernel in trace.kernels if kernel.stage is stage)
        assert 0 < inside <= stage.end - stage.start
    linear, mm = (
        [kernel for kernel in trace.kernels if kernel.name == name and kernel.range == "lm_head"]
        for name in ("aten::linear", "aten::mm")
    )
    assert all(kernel.duration < kernel.end - kernel.start for kernel in linear)
    assert all(is_product(kernel.name) for kernel in mm)


def test_a_compact_trace_is_attributed_alike(events, tmp_path):
    write_events(tmp_path / "trace.json.gz", compact(events))
    assert (tmp_path / "trace.json.gz").stat().st_size < len(json.dumps(events)) / 10
    small = attribute(read_events(tmp_path / "trace.json.gz"))
    whole = attribute(events)
    assert [origin[2:] for origin in origins(small)] == [origin[2:] for origin in origins(whole)]
    durations = [kernel.duration for kernel in whole.kernels]
    assert [kernel.duration for kernel in small.kernels] == pytest.approx(durations, abs=0.01)


@pytest.mark.parametrize("name", ["eager", "checkpointed", "two_streams"])
def test_a_compact_trace_cannot_be_made_smaller(name):
    events = read_events(FOLDER / f"{name}.json.gz")
    again = compact(events)
    assert len(again) == len(events)
    assert origins(attribute(again)) == origins(attribute(events))


def test_a_recording_that_ends_early_leaves_nothing_behind(tmp_path):
    """As where memory runs out: no hooks, no ranges, and the next recording is whole."""
    step = make_step("eager", CPU)

    def run_out():
        with named_range("inner"):
            raise MemoryError

    with pytest.raises(MemoryError), recording(step.forward_model, CPU, tmp_path / "lost.json"):
        run_steps({"forward": step.infer, "loss": run_out}, 1, CPU)
    assert not (tmp_path / "lost.json").exists()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in step.model.modules())
    assert isinstance(named_range("nobody listens"), contextlib.nullcontext)
    record(step, tmp_path / "trace.json.gz", CPU)
    assert [stage.name for stage in attribute(read_events(tmp_path / "trace.json.gz")).stages] == list(STAGES)


def test_recomputed_operators_belong_to_their_modules_on_a_cpu_too(tmp_path):
    record(make_step("checkpointed", CPU), tmp_path / "trace.json.gz", CPU)
    launches = counted(attribute(read_events(tmp_path / "trace.json.gz")))
    assert (launches["forward", "scores"], launches["backward", "scores"]) == (1, 3)


def test_a_launch_may_have_many_kernels_as_that_of_a_cuda_graph():
    events = read_events(FOLDER / "eager.json.gz")
    kernels = [event for event in events if event.get("cat") == "kernel"]
    first = kernels[0]["args"]["correlation"]
    for kernel in kernels:
        kernel["args"]["correlation"] = first
    trace = attribute(events)
    assert len(trace.kernels) >= len(kernels)
    assert {(kernel.stage.name, kernel.range) for kernel in trace.kernels} >= {("forward", "token_embedding")}


def test_a_kernel_without_its_launch_is_of_unknown_origin():
    events = read_events(FOLDER / "eager.json.gz")
    victim = next(event for event in events if event.get("cat") == "kernel")
    launch = next(
        event
        for event in events
        if event.get("cat") == "cuda_runtime" and event["args"]["correlation"] == victim["args"]["correlation"]
    )
    trace = attribute(event for event in events if event is not launch)
    unknown = [kernel for kernel in trace.kernels if kernel.stage is None]
    assert [(kernel.name, kernel.range) for kernel in unknown] == [(victim["name"], "")]


def test_an_autograd_node_without_its_arrow_has_no_range():
    events = [event for event in read_events(FOLDER / "eager.json.gz") if event.get("cat") != "fwdbwd"]
    ranges = Counter(kernel.range for kernel in attribute(events).kernels if kernel.stage.name == "backward")
    assert set(ranges) <= {"", "backward", GRADIENT_ACCUMULATION}
    assert ranges[""] > 50


def names_recorded():
    q = torch.randn(2, 8, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        plain_attention(q, q, q, is_causal=True)
    return [event.name for event in profiler.events() if not event.name.startswith("aten::")]


def test_ranges_exist_while_somebody_listens():
    assert names_recorded() == []
    with listening():
        assert names_recorded() == ["scores", "softmax", "final product"]
    assert names_recorded() == []


def test_ranges_neither_break_a_compiled_graph_nor_compile_it_again():
    q = torch.randn(2, 8, 4)
    counter = CompileCounter()
    compiled = torch.compile(plain_attention, fullgraph=True, backend=counter)
    torch.testing.assert_close(compiled(q, q, q, is_causal=True), plain_attention(q, q, q, is_causal=True))
    with listening():
        compiled(q, q, q, is_causal=True)
    assert counter.frame_count == 1
