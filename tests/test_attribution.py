"""Attribution of kernels to stages and modules, on traces recorded on an H200 and, if there is one, on a GPU."""

import pytest
import torch

from cs336_systems.accounting.transformer import forward_products
from cs336_systems.benchmarks.kernel_profile import unattributed
from cs336_systems.measure.trace import attribute, read_events
from cs336_systems.record.measurement import STAGES
from cs336_systems.training_step import PHASES_OF_MODE, TrainingStep
from tests.traces import FOLDER, SHAPE, by_stage, category, counted, make_step, record

GPU = torch.device("cuda")
PRODUCTS = forward_products(SHAPE)
ATTENTION_PRODUCTS = ["scores", "final product"]
LINEAR = [f"blocks.attention.{name}" for name in ("query", "key", "value", "output")]
LINEAR += [f"blocks.feed_forward.{name}" for name in ("gate", "up", "down")]


@pytest.fixture(params=["recorded", pytest.param("here", marks=pytest.mark.gpu)])
def trace_of(request, tmp_path):
    """The trace of a training step of one of the countable models, by its name."""

    def trace(name):
        path = FOLDER / f"{name}.json.gz"
        if request.param == "here":
            path = tmp_path / f"{name}.json.gz"
            record(make_step(name, GPU), path, GPU)
        attribution = attribute(read_events(path))
        assert attribution.on_device
        assert [stage.name for stage in attribution.stages] == list(STAGES)
        assert unattributed(attribution.kernels) < 0.01
        return attribution

    return trace


def test_the_stages_are_those_of_the_training_step():
    step = TrainingStep(torch.nn.Identity(), torch.zeros(1, 2))
    assert tuple(step.stages("train_step")) == STAGES
    assert {stage for mode in PHASES_OF_MODE for stage in step.stages(mode)} == set(STAGES)


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["eager", "bf16"])
def test_every_product_belongs_to_its_module_forward_and_backward(trace_of, name):
    trace = trace_of(name)
    expected = {}
    for range_ in [*LINEAR, *ATTENTION_PRODUCTS, "lm_head"]:
        expected |= {("forward", range_): 1, ("backward", range_): 2}
    assert counted(trace) == expected
    assert sum(expected.values()) == 3 * PRODUCTS
    softmax = [("forward", "softmax"), ("backward", "softmax"), ("loss", "loss"), ("backward", "loss")]
    assert counted(trace, "softmax") == dict.fromkeys(softmax, 1)
    assert {range_ for _, range_ in counted(trace, "normalization")} == {
        "blocks.attention_norm",
        "blocks.feed_forward_norm",
        "final_norm",
    }


def test_updates_are_the_optimizers(trace_of):
    trace = trace_of("eager")
    assert set(counted(trace, "optimizer")) == {("optimizer", "optimizer")}
    assert {category(kernel) for kernel in trace.kernels if kernel.stage.name == "optimizer"} == {"optimizer"}


def test_attention_kernels_of_triton_are_found(trace_of):
    trace = trace_of("flash")
    launches = counted(trace, "attention")
    assert launches["forward", "blocks.attention"] == 1
    assert set(launches) == {("forward", "blocks.attention"), ("backward", "blocks.attention")}
    assert by_stage(counted(trace)) == {"forward": PRODUCTS - 2, "backward": 2 * (PRODUCTS - 2)}


def test_a_compiled_model_is_one_range(trace_of):
    trace = trace_of("compiled")
    assert by_stage(counted(trace)) == {"forward": PRODUCTS, "backward": 2 * PRODUCTS}
    assert {kernel.range for kernel in trace.kernels if kernel.stage.name == "forward"} == {"compiled"}
    fused = [kernel for kernel in trace.kernels if kernel.name.startswith("triton_")]
    assert {(kernel.stage.name, kernel.range) for kernel in fused} == {
        ("forward", "compiled"),
        ("backward", "compiled"),
    }


@pytest.mark.parametrize("name", ["checkpointed", "checkpointed_reentrant"])
def test_products_computed_again_belong_to_their_modules(trace_of, name):
    launches = counted(trace_of(name))
    for range_ in [*LINEAR, *ATTENTION_PRODUCTS]:
        assert launches["forward", range_] == 1
        assert launches["backward", range_] == 3  # once more forward
    assert by_stage(launches) == {"forward": PRODUCTS, "backward": 2 * PRODUCTS + PRODUCTS - 1}


def test_what_runs_on_a_second_stream_belongs_to_its_module(trace_of):
    trace = trace_of("two_streams")
    launches = counted(trace)
    lanes = []
    for name in ("left", "right"):
        assert (launches["forward", name], launches["backward", name]) == (1, 2)
        lanes.append({kernel.lane for kernel in trace.kernels if kernel.range == name and category(kernel) == "matmul"})
    assert [len(lane) for lane in lanes] == [1, 1]
    assert lanes[0] != lanes[1]


@pytest.mark.gpu
def test_a_profile_compiles_nothing_again(tmp_path):
    step = make_step("compiled", GPU)
    record(step, tmp_path / "first.json.gz", GPU)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    record(step, tmp_path / "second.json.gz", GPU)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
