"""Attribution on a GPU, of models whose kernels can be counted: eager, compiled, checkpointed, on two streams."""

from collections import Counter

import pytest
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from cs336_systems.accounting.transformer import forward_products
from cs336_systems.benchmarks.kernel_profile import stage_rows, unattributed
from cs336_systems.measure.kernel_names import PARTIAL_SUMS, categorize
from cs336_systems.measure.kernel_profile import recording, run_steps
from cs336_systems.measure.trace import attribute, read_events
from cs336_systems.model import build_model
from cs336_systems.sizes import ModelShape
from cs336_systems.training_step import TrainingStep
from tests.models import CheckpointedLM

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
SHAPE = ModelShape(d_model=64, d_ff=256, num_layers=3, num_heads=2)
BATCH, CONTEXT, VOCABULARY, STEPS = 2, 48, 500, 2
PRODUCTS = forward_products(SHAPE)


def make_step(model="cs336_systems.model:TransformerLM", attention="plain", **options):
    torch.manual_seed(0)
    made = build_model(model, SHAPE, vocab_size=VOCABULARY, context_length=CONTEXT, attention=attention, device=GPU)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), device=GPU)
    return TrainingStep(made, tokens, optimizer=torch.optim.AdamW(made.parameters(), fused=True), **options)


def trace_of(step, folder):
    stages = step.stages("train_step")
    run_steps(stages, 2, GPU)
    with recording(step.forward_model, GPU, folder / "trace.json"):
        times = run_steps(stages, STEPS, GPU)
    trace = attribute(read_events(folder / "trace.json"))
    assert trace.on_device
    assert [(stage.name, stage.step) for stage in trace.stages] == [(s, n) for n in range(STEPS) for s in stages]
    assert unattributed(trace.kernels) < 0.01
    return trace, times


def category(kernel):
    return categorize(kernel.name, operator=kernel.operator, stage=kernel.stage.name, range_=kernel.range)


def counted(trace, wanted="matmul"):
    """Launches per step of a category, by stage and range."""
    launches = Counter(
        (kernel.stage.name, kernel.range)
        for kernel in trace.kernels
        if category(kernel) == wanted and PARTIAL_SUMS not in kernel.name
    )
    assert all(number % STEPS == 0 for number in launches.values())
    return {place: number // STEPS for place, number in launches.items()}


def by_stage(launches):
    total = Counter()
    for (stage, _), number in launches.items():
        total[stage] += number
    return dict(total)


LINEAR = [f"blocks.attention.{name}" for name in ("query", "key", "value", "output")]
LINEAR += [f"blocks.feed_forward.{name}" for name in ("gate", "up", "down")]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_product_belongs_to_its_module_forward_and_backward(tmp_path, precision):
    trace, _ = trace_of(make_step(precision=precision), tmp_path)
    expected = {("forward", "lm_head"): 1, ("backward", "lm_head"): 2}
    for name in [*LINEAR, "scores", "final product"]:
        expected |= {("forward", name): SHAPE.num_layers, ("backward", name): 2 * SHAPE.num_layers}
    assert counted(trace) == expected
    assert sum(expected.values()) == 3 * PRODUCTS
    softmax = {("forward", "softmax"): 3, ("backward", "softmax"): 3, ("loss", "loss"): 1, ("backward", "loss"): 1}
    assert counted(trace, "softmax") == softmax
    norms = {range_ for _, range_ in counted(trace, "normalization")}
    assert norms == {"blocks.attention_norm", "blocks.feed_forward_norm", "final_norm"}


def test_updates_are_the_optimizers(tmp_path):
    trace, _ = trace_of(make_step(), tmp_path)
    assert set(counted(trace, "optimizer")) == {("optimizer", "optimizer")}
    assert {category(kernel) for kernel in trace.kernels if kernel.stage.name == "optimizer"} == {"optimizer"}


def test_a_compiled_model_is_one_range(tmp_path):
    step = make_step(compiled=True)
    trace, _ = trace_of(step, tmp_path)
    assert by_stage(counted(trace)) == {"forward": PRODUCTS, "backward": 2 * PRODUCTS}
    ranges = {kernel.range for kernel in trace.kernels if kernel.stage.name == "forward"}
    assert ranges == {"compiled"}
    assert any(kernel.name.startswith("triton_") for kernel in trace.kernels)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    trace_of(step, tmp_path)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # listening compiles nothing again


def test_attention_kernels_of_triton_are_found(tmp_path):
    trace, _ = trace_of(make_step(attention="flash", precision="bf16"), tmp_path)
    places = counted(trace, "attention")
    assert places[("forward", "blocks.attention")] == SHAPE.num_layers
    assert set(places) == {("forward", "blocks.attention"), ("backward", "blocks.attention")}
    assert by_stage(counted(trace))["forward"] == PRODUCTS - 2 * SHAPE.num_layers


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_products_belong_to_their_modules(tmp_path, monkeypatch, use_reentrant):
    monkeypatch.setattr(CheckpointedLM, "use_reentrant", use_reentrant)
    with set_checkpoint_early_stop(False):
        trace, _ = trace_of(make_step("tests.models:CheckpointedLM"), tmp_path)
    launches = counted(trace)
    for name in [*LINEAR, "scores", "final product"]:
        assert launches[("forward", name)] == SHAPE.num_layers
        assert launches[("backward", name)] == 3 * SHAPE.num_layers  # once more forward
    assert by_stage(launches) == {"forward": PRODUCTS, "backward": 2 * PRODUCTS + PRODUCTS - 1}


def test_what_runs_on_a_second_stream_belongs_to_who_launched_it(tmp_path):
    trace, _ = trace_of(make_step("tests.models:TwoStreamsLM"), tmp_path)
    launches = counted(trace)
    for name, streams in (("left", 1), ("right", 1)):
        assert launches[("forward", name)] == 1
        assert launches[("backward", name)] == 2
        lanes = {kernel.lane for kernel in trace.kernels if kernel.range == name and category(kernel) == "matmul"}
        assert len(lanes) == streams
    lanes = {kernel.lane for kernel in trace.kernels if category(kernel) == "matmul"}
    assert len(lanes) == 2


def test_busy_and_idle_time_add_up_to_the_events_between_which_they_lie(tmp_path):
    trace, times = trace_of(make_step(), tmp_path)
    rows = {(row.metric, row.details["stage"]): row.mean for row in stage_rows(trace)}
    for stage, milliseconds in times.stages.items():
        whole = rows["stage_busy", stage] + rows["stage_idle", stage]
        assert whole == pytest.approx(sum(milliseconds) / STEPS, rel=0.05, abs=0.05)


def test_hooks_are_gone_afterwards(tmp_path):
    step = make_step()
    trace_of(step, tmp_path)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in step.model.modules())
