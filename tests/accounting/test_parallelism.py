"""Closed forms of parallelism against loops over devices and matrices, a search for limits, and a scan of splits."""

import math
from dataclasses import replace

import pytest

from cs336_systems.accounting.accelerators import TPU_V5P, Accelerator
from cs336_systems.accounting.mesh import Mesh, bubble_share
from cs336_systems.accounting.parallelism import FeedForward, Parallel
from cs336_systems.accounting.xxl import XXL

DEVICE = Accelerator(name="made up", flops=3e12, bandwidth=5e10, memory=1e9)
LAYERS = [
    FeedForward(tokens=4999, d_model=77, d_ff=301),
    FeedForward(tokens=333, d_model=1024, d_ff=2751, matrices=2),
    FeedForward(tokens=20_011, d_model=512, d_ff=1376),
]


def product(rows, inner, columns):
    return 2 * rows * inner * columns


def counted_flops(layer, rows, width):
    """Operations of a device with a part of the batch's rows and of D_FF: forward, backward."""
    widen, narrow = (layer.d_model, width), (width, layer.d_model)
    matrices = [widen] * (layer.matrices - 1) + [narrow]
    forward = sum(product(rows, inner, columns) for inner, columns in matrices)
    of_inputs = sum(product(rows, columns, inner) for inner, columns in matrices)
    of_weights = sum(product(inner, rows, columns) for inner, columns in matrices)
    return forward, of_inputs + of_weights


def collective(size, count, passes):
    """Seconds of `passes` times N - 1 steps in which each device sends an Nth."""
    return passes * (count - 1) * size / count / DEVICE.bandwidth


def weights_of(layer):
    return sum(2 * layer.d_model * layer.d_ff for _ in range(layer.matrices))


def mixed(layer, fsdp, tensor, *, overlapped):
    """Seconds of computing on a grid of devices, and of communicating: weights along one axis, outputs on the other."""
    forward, _ = counted_flops(layer, layer.tokens / fsdp, layer.d_ff / tensor)
    weights = collective(weights_of(layer) / tensor, fsdp, 1)
    outputs = collective(2 * layer.tokens / fsdp * layer.d_model, tensor, 2)
    return forward / DEVICE.flops, max(weights, outputs) if overlapped else weights + outputs


def last(is_bound, low=1.0, high=1e12):
    """By bisection: the largest number for which it holds, if it holds up to one number and not beyond."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_bound(middle) else (low, middle)
    return low


@pytest.mark.parametrize("layer", LAYERS)
def test_limits_are_where_communication_overtakes_compute(layer):
    spread = Parallel(layer, DEVICE)
    weights, output = weights_of(layer), 2 * layer.tokens * layer.d_model

    def batch_split(count):
        return counted_flops(layer, layer.tokens / count, layer.d_ff)

    def width_split(count):
        return counted_flops(layer, layer.tokens, layer.d_ff / count)

    for limit, split, in_backward, size, passes in (
        (spread.batch_limit, batch_split, False, weights, 1),  # FSDP: weights are gathered
        (spread.batch_limit, batch_split, True, weights, 2),  # and again, and gradients reduce-scattered or all-reduced
        (spread.tensor_forward_limit, width_split, False, output, 2),
        (spread.tensor_backward_limit, width_split, True, output, 2),
    ):
        assert collective(size, limit, passes) == pytest.approx(split(limit)[in_backward] / DEVICE.flops)


@pytest.mark.parametrize("layer", [*LAYERS, replace(LAYERS[0], tokens=5), replace(LAYERS[0], tokens=10**6)])
@pytest.mark.parametrize("overlapped", [True, False])
def test_no_split_takes_more_devices_than_the_limit(layer, overlapped):
    spread = Parallel(layer, DEVICE)
    sizes = [(spread.batch_limit * (1 - 1e-9)) ** (step / 200) for step in range(201)]  # of the FSDP axis

    def is_bound(fsdp, tensor):
        compute, communication = mixed(layer, fsdp, tensor, overlapped=overlapped)
        return communication <= compute

    def most(fsdp):
        return fsdp * last(lambda tensor: is_bound(fsdp, tensor))

    largest = max(map(most, sizes))
    assert largest == pytest.approx(spread.mixed_limit(overlapped=overlapped), rel=1e-3)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("devices", [1, 2, 48, 5000])
def test_no_split_communicates_for_less_time_than_the_best(layer, overlapped, devices):
    spread = Parallel(layer, DEVICE)

    def seconds(fsdp):
        return mixed(layer, fsdp, devices / fsdp, overlapped=overlapped)[1]

    best = spread.best_fsdp(devices, overlapped=overlapped)
    assert 1 <= best <= devices * (1 + 1e-12)
    assert seconds(best) <= (1 + 1e-12) * min(seconds(devices ** (step / 2000)) for step in range(2001))


MESHES = [
    Mesh(d_model=16384, d_ff=53248, device=TPU_V5P, fsdp=16, tensor=4, fsdp_axes=2, tensor_axes=1),
    Mesh(d_model=77, d_ff=999, device=DEVICE, fsdp=3, tensor=5, fsdp_axes=1, tensor_axes=2),
]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("overlapped", [True, False])
def test_the_least_batch_is_where_compute_overtakes(mesh, overlapped):
    def is_bound(batch):
        """By counting: both matrices, one after the other, on a device's share of the batch and of D_FF."""
        rows, width = batch * mesh.tensor, mesh.d_ff / mesh.tensor
        compute = (product(rows, mesh.d_model, width) + product(rows, width, mesh.d_model)) / mesh.device.flops
        matrices = 2 * 2 * mesh.d_model * width / (mesh.fsdp_axes * mesh.device.bandwidth)
        ends = 2 * 2 * rows * mesh.d_model / (mesh.tensor_axes * mesh.device.bandwidth)
        return (max(matrices, ends) if overlapped else matrices + ends) < compute

    least = last(lambda batch: not is_bound(batch), low=1e-3)
    assert mesh.least_batch(overlapped=overlapped) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("overlapped", [True, False])
def test_no_tensor_axis_makes_a_smaller_batch_than_the_best(mesh, overlapped):
    most = mesh.tensor_axes * mesh.d_ff / mesh.device.intensity
    sizes = [most * step / 5000 for step in range(1, 5001)]
    smallest = min(replace(mesh, tensor=size).least_batch(overlapped=overlapped) for size in sizes)
    assert mesh.best_batch(overlapped=overlapped) == pytest.approx(smallest)
    assert mesh.best_batch(overlapped=False) == 4 * mesh.best_batch(overlapped=True)


def test_a_pipeline_gathers_fewer_weights():
    mesh = MESHES[0]
    matrices = 2 * mesh.d_model * mesh.d_ff / mesh.tensor
    for stages in (1, 2, 7):
        blocks = 14  # over all stages
        gathering = blocks / stages * 2 * matrices / (mesh.fsdp_axes * mesh.device.bandwidth)
        tokens = mesh.pipelined_batch(stages) * mesh.tensor
        assert blocks * 2 * tokens * matrices / mesh.device.flops == pytest.approx(gathering)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_a_pipelines_bubble_is_that_of_its_schedule(stages, micro_batches):
    done = [[0] * (micro_batches + 1) for _ in range(stages + 1)]
    for stage in range(stages):
        for micro in range(micro_batches):
            done[stage + 1][micro + 1] = max(done[stage][micro + 1], done[stage + 1][micro]) + 1
    span = done[stages][micro_batches]
    assert bubble_share(stages, micro_batches) == pytest.approx(1 - micro_batches / span)


def test_xxl_is_what_its_tensors_sum_up_to():
    narrow, wide, parameters = 0, 0, 0
    for _ in range(126):
        for inputs, outputs in ((16384, 53248), (53248, 16384)):
            parameters += inputs * outputs
            narrow += 2 * inputs if inputs == 16384 else 0
            wide += 2 * inputs if inputs == 53248 else 0
    assert XXL.parameters == parameters
    assert XXL.state_bytes == sum(4 * parameters for _ in ("weight", "gradient", "moment", "second moment"))
    assert (XXL.narrow_bytes, XXL.wide_bytes, XXL.saved_bytes) == (narrow, wide, narrow + wide)


@pytest.mark.parametrize("memory", [94.9e9, 95e9, XXL.state_bytes / 40])
@pytest.mark.parametrize("whole", [0.0, 40e9, 94e9])
def test_the_fewest_devices_are_found_by_trying(memory, whole):
    def in_use(count):
        return (XXL.state_bytes + whole) / count + whole

    least = XXL.least_devices(memory, sharded=whole, whole=whole)
    if least is None:
        assert in_use(10**9) >= memory
    else:
        assert least == next(count for count in range(1, 10**5) if in_use(count) < memory)
