"""The timeline figure, drawn from traces of one step."""

import pytest

from cs336_systems.measure.compact_trace import write_events
from cs336_systems.measure.trace import attribute, read_events
from scripts.figures import fastest_step
from scripts.figures.kernel_timeline import BINS, busy_shares, category_of, draw, lanes_of
from scripts.rendering.style import NotDrawn
from tests.samples import ROOT
from tests.traces import FOLDER


def test_every_kernel_is_in_one_lane_and_every_launch_in_one():
    trace = attribute(read_events(FOLDER / "eager.json.gz"))
    lanes = lanes_of(trace)
    assert list(lanes)[:2] == ["launches", "launches by autograd"]
    assert {"matmul", "softmax", "elementwise", "normalization", "optimizer"} <= set(lanes)
    launches = sum(len(lane) for name, lane in lanes.items() if name.startswith("launches"))
    assert launches == sum(map(len, lanes.values())) - launches == len(trace.kernels)


def test_a_lane_is_as_high_as_the_share_of_time_that_it_is_busy():
    width = 4 / BINS  # of a part, in a window of 4
    heights = busy_shares([(0.0, 1.5 * width), (1.0, 2.0)], (0.0, 4.0))
    assert list(heights[:3]) == pytest.approx([1, 0.5, 0])
    assert heights.mean() == pytest.approx((1 + 1.5 * width) / 4)


def test_the_fastest_step_has_a_lane_for_each_kind_and_the_passes_that_the_loss_separates():
    trace = ROOT / "recorded/nvidia-h100-80gb-hbm3/traces/fastest_step.json.gz"
    step = attribute(read_events(trace))
    lanes = fastest_step.lanes_of(step.kernels)
    kinds = {label.partition(":")[0]: float(label.split()[-2]) for label in lanes}
    assert list(kinds) == ["matmul", "attention", "elementwise", "normalization", "optimizer", "other"]
    assert sum(map(len, lanes.values())) == len(step.kernels) > 1600
    # The update is hidden: kinds together take longer than the step.
    begin, end = min(kernel.start for kernel in step.kernels), max(kernel.end for kernel in step.kernels)
    assert kinds["matmul"] < (end - begin) / 1e3 < sum(kinds.values())
    forward, loss, backward = fastest_step.passes(step, begin, end)
    updates = [kernel for kernel in step.kernels if category_of(kernel) == "optimizer"]
    assert forward.end < min(kernel.start for kernel in updates) < backward.end
    assert loss.end - loss.start < 0.05 * (backward.end - backward.start)
    (axes,) = fastest_step.draw(str(trace)).axes
    assert "idle for 2.6 ms" in axes.get_xlabel()


@pytest.mark.parametrize("trace", ["", "empty.json.gz"])
def test_where_there_is_no_trace_the_figure_says_why(tmp_path, trace):
    write_events(tmp_path / "empty.json.gz", [], "out of memory")
    reason = "out of memory" if trace else "not run"
    with pytest.raises(NotDrawn, match=f"no step was traced: {reason}"):
        draw(str(tmp_path / trace if trace else ""))
