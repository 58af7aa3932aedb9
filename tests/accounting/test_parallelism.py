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
    """Operations of a device with so many rows of the batch and so much of D_FF: forward, backward."""
    widen, narrow = (layer.d_model, width), (width, layer.d_model)
    matrices = [widen] * (layer.matrices - 1) + [narrow]
    forward = sum(product(rows, inner, columns) for inner, columns in matrices)
    of_inputs = sum(product(rows, columns, inner) for inner, columns in matrices)
    of_weights = sum(product(inner, rows, columns) for inner, columns in matrices)
    return forward, of_inputs + of_weights


def ring(size, count, passes):
    """Seconds of `passes` times N - 1 steps in which each device sends an Nth."""
    return sum(size / count / DEVICE.bandwidth for _ in range(passes) for _ in range(count - 1))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_one_axis_is_what_a_count_of_operations_and_bytes_says(layer, count):
    spread = Parallel(layer, DEVICE)
    forward, backward = counted_flops(layer, layer.tokens / count, layer.d_ff)
    weights = sum(2 * layer.d_model * layer.d_ff for _ in range(layer.matrices))
    data = spread.data_parallel_backward(count)
    assert (data.compute, data.communication) == pytest.approx((backward / DEVICE.flops, ring(weights, count, 2)))
    there, back = spread.fsdp_forward(count), spread.fsdp_backward(count)
    assert (there.compute, there.communication) == pytest.approx((forward / DEVICE.flops, ring(weights, count, 1)))
    assert (back.compute, back.communication) == pytest.approx((backward / DEVICE.flops, ring(weights, count, 2)))

    forward, backward = counted_flops(layer, layer.tokens, layer.d_ff / count)
    output = 2 * layer.tokens * layer.d_model
    there, back = spread.tensor_forward(count), spread.tensor_backward(count)
    assert (there.compute, there.communication) == pytest.approx((forward / DEVICE.flops, ring(output, count, 2)))
    assert (back.compute, back.communication) == pytest.approx((backward / DEVICE.flops, ring(output, count, 2)))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("fsdp", "tensor"), [(1, 1), (3, 1), (1, 5), (4, 7)])
def test_two_axes_are_what_a_count_says(layer, fsdp, tensor):
    forward, _ = counted_flops(layer, layer.tokens / fsdp, layer.d_ff / tensor)
    weights = ring(2 * layer.matrices * layer.d_model * layer.d_ff / tensor, fsdp, 1)
    outputs = ring(2 * layer.tokens / fsdp * layer.d_model, tensor, 2)
    for overlapped, expected in ((True, max(weights, outputs)), (False, weights + outputs)):
        found = Parallel(layer, DEVICE).mixed_forward(fsdp, tensor, overlapped=overlapped)
        assert (found.compute, found.communication) == pytest.approx((forward / DEVICE.flops, expected))


def last(is_bound, low=1.0, high=1e12):
    """By bisection: the largest number for which it holds, if it holds up to one number and not beyond."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_bound(middle) else (low, middle)
    return low


@pytest.mark.parametrize("layer", LAYERS)
def test_limits_are_where_communication_overtakes_compute(layer):
    spread = Parallel(layer, DEVICE)
    for limit, times in (
        (spread.batch_limit, spread.data_parallel_backward),
        (spread.batch_limit, spread.fsdp_forward),
        (spread.batch_limit, spread.fsdp_backward),
        (spread.tensor_forward_limit, spread.tensor_forward),
        (spread.tensor_backward_limit, spread.tensor_backward),
    ):
        assert limit == pytest.approx(last(lambda count, times=times: times(count).is_compute_bound), rel=1e-6)


@pytest.mark.parametrize("layer", [*LAYERS, replace(LAYERS[0], tokens=5), replace(LAYERS[0], tokens=10**6)])
@pytest.mark.parametrize("overlapped", [True, False])
def test_no_split_takes_more_devices_than_the_limit(layer, overlapped):
    spread = Parallel(layer, DEVICE)
    sizes = [(spread.batch_limit * (1 - 1e-9)) ** (step / 200) for step in range(201)]  # of the FSDP axis

    def most(fsdp):
        return fsdp * last(lambda tensor: spread.mixed_forward(fsdp, tensor, overlapped=overlapped).is_compute_bound)

    found = max(map(most, sizes))
    assert found == pytest.approx(spread.mixed_limit(overlapped=overlapped), rel=1e-3)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("devices", [1, 2, 48, 5000])
def test_no_split_communicates_for_less_time_than_the_best(layer, overlapped, devices):
    spread = Parallel(layer, DEVICE)

    def seconds(fsdp):
        return spread.mixed_forward(fsdp, devices / fsdp, overlapped=overlapped).communication

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
        assert compute == pytest.approx(mesh.compute_seconds(batch))
        communication = max(matrices, ends) if overlapped else matrices + ends
        assert communication == pytest.approx(mesh.communication_seconds(batch, overlapped=overlapped))
        return communication < compute

    least = last(lambda batch: not is_bound(batch), low=1e-3)
    assert mesh.least_batch(overlapped=overlapped) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("overlapped", [True, False])
def test_no_tensor_axis_makes_a_smaller_batch_than_the_best(mesh, overlapped):
    best = mesh.best_tensor(overlapped=overlapped)
    least = mesh.best_batch(overlapped=overlapped)
    assert replace(mesh, tensor=best).least_batch(overlapped=overlapped) == pytest.approx(least)
    for factor in (0.3, 0.7, 0.99, 1.01, 1.5, 1.99, 2.5):
        assert replace(mesh, tensor=factor * best).least_batch(overlapped=overlapped) > least
    assert mesh.best_batch(overlapped=False) == 4 * mesh.best_batch(overlapped=True)


def test_a_pipeline_gathers_fewer_weights():
    mesh = MESHES[0]
    for stages in (1, 2, 7):
        blocks = 14  # over all stages
        gathering = blocks / stages * mesh.weights_seconds
        batch = mesh.pipelined_batch(stages)
        assert blocks * mesh.compute_seconds(batch) == pytest.approx(gathering)


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
    sharding = XXL.sharding(sharded=whole, whole=whole)
    least = sharding.least_devices(memory)
    if least is None:
        assert sharding.per_device(10**9) >= memory
    else:
        assert least == next(count for count in range(1, 10**5) if sharding.per_device(count) < memory)
