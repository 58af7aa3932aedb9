"""The replay of the allocator's history: on histories written by hand, and on those recorded on a GPU."""

from pathlib import Path

import pytest
import torch

from cs336_systems.accounting import transformer
from cs336_systems.measure.memory_history import OperatorLog, code_at, owners_of_training, source_of
from cs336_systems.measure.memory_recording import BlockState, Event, Operator, Recording, Segment, Stage
from cs336_systems.measure.memory_timeline import (
    ACTIVATIONS,
    CATEGORIES,
    GRADIENTS,
    OPTIMIZER_STATE,
    OTHER_TENSORS,
    PARAMETERS,
    POINTS,
    ROUNDING,
    TEMPORARIES,
    UNCLASSIFIED,
    WEIGHT_COPIES,
    largest_groups,
    replay,
    sample_positions,
)
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import TrainingStep
from tests.support.models import ours
from tests.support.record_memory import CELL, RECORDING

MIB = 2**20
RECORDINGS = sorted((Path(__file__).parents[1] / "data").glob("memory-*.json"))
ALL, OUT = "active_allocated", "inactive"


def history(*events, stages=None, segments=(), operators=(), before=None, after=None):
    """A recording of events (action, address, size), one per millisecond, in one stage if no stages are given."""
    counted = sum(action in ("alloc", "free_requested") for action, *_ in events)
    return Recording(
        segments=segments,
        events=[Event(*event, 1000 * time, "") for time, event in enumerate(events)],
        stages=[Stage(*stage) for stage in (stages or [("forward", counted)])],
        operators=[Operator(*operator) for operator in operators],
        owners_before=before or {},
        owners_after=after or {},
        peak=0,
    )


def freed(address, size):
    return [("free_requested", address, size), ("free_completed", address, size)]


def small(*blocks):
    return Segment(True, [BlockState(*block) for block in blocks])


def large(*blocks):
    return Segment(False, [BlockState(*block) for block in blocks])


def test_requests_are_rounded_to_blocks_and_the_rest_is_told_apart():
    timeline = replay(history(("segment_alloc", 0, 2 * MIB), ("alloc", 0, 1), ("alloc", 512, 513), ("alloc", 1536, 0)))
    assert [allocation.size for allocation in timeline.made()] == [512, 1024, 512]
    assert timeline.totals() == [0, 512, 1536, 2048]
    last = dict(timeline.levels_at([3])[0])
    assert last[ROUNDING] == 2048 - 514
    assert sum(last.values()) == 2048


@pytest.mark.parametrize(
    ("pool", "block", "requested", "counted"),
    [
        # A tensor of the 2.7B model: 360 448 bytes would remain of its segment, so it takes the whole.
        (large, 102_760_448, 102_400_000, 102_760_448),
        (large, 26 * MIB, 25 * MIB, 26 * MIB),  # 1 MiB would remain: not more than that
        (large, 26 * MIB, 25 * MIB - 511, 26 * MIB),
        (large, 26 * MIB, 25 * MIB - 512, 25 * MIB - 512),
        (small, 2 * MIB, 2 * MIB - 1024, 2 * MIB - 1024),
        (small, 2 * MIB, 2 * MIB - 512, 2 * MIB - 512),  # 512 bytes remain, which is a block
        (small, 2 * MIB, 2 * MIB - 511, 2 * MIB),
    ],
)
def test_a_free_block_is_taken_whole_if_little_of_it_would_remain(pool, block, requested, counted):
    segment = pool((0, block, 0, OUT))
    timeline = replay(history(("alloc", 0, requested), *freed(0, requested), segments=[segment]))
    assert timeline.totals() == [0, counted, 0]


def test_freed_neighbours_become_one_block():
    size = 4 * MIB
    fill = [("alloc", index * size, size) for index in range(4)]
    middle_last = [*freed(0, size), *freed(2 * size, size), *freed(size, size)]
    for request in (3 * size, 3 * size - MIB):  # only in one block; taken whole, next to the fourth
        events = [("segment_alloc", 0, 4 * size), *fill, *middle_last, ("alloc", 0, request)]
        assert replay(history(*events)).totals()[-1] == 4 * size
    # What remains of the merged block can be used by itself.
    events = [("segment_alloc", 0, 4 * size), *fill, *middle_last, ("alloc", 0, size), ("alloc", size, 2 * size)]
    assert replay(history(*events)).totals()[-1] == 4 * size


def test_segments_that_touch_are_not_merged():
    segments = [large((0, 20 * MIB, 0, OUT)), large((20 * MIB, 20 * MIB, 0, OUT))]
    events = [("alloc", 0, 20 * MIB), *freed(0, 20 * MIB), ("alloc", 0, 19 * MIB), ("alloc", 20 * MIB, 20 * MIB)]
    assert replay(history(*events, segments=segments)).totals()[-1] == 40 * MIB


def test_a_segment_that_was_given_back_may_return_elsewhere_and_in_another_size():
    events = [
        ("segment_alloc", 0, 20 * MIB),
        ("alloc", 0, 5 * MIB),
        *freed(0, 5 * MIB),
        ("segment_free", 0, 20 * MIB),
        ("segment_alloc", 0, 2 * MIB),
        ("alloc", 0, MIB),
        ("alloc", MIB, 512),
    ]
    assert replay(history(*events)).totals() == [0, 5 * MIB, 0, MIB, MIB + 512]


def test_what_another_stream_still_reads_is_not_counted_but_its_block_is_not_free_yet():
    segment = large((0, 8 * MIB, 8 * MIB, "active_pending_free"), (8 * MIB, 12 * MIB, 0, OUT))
    events = [
        ("alloc", 8 * MIB, 4 * MIB),
        ("free_requested", 8 * MIB, 4 * MIB),
        ("alloc", 12 * MIB, 8 * MIB),  # next to it, since both blocks before are waiting
        ("free_completed", 0, 8 * MIB),
        ("free_completed", 8 * MIB, 4 * MIB),
        ("alloc", 0, 12 * MIB),  # both in one
    ]
    assert replay(history(*events, segments=[segment])).totals() == [0, 4 * MIB, 0, 8 * MIB, 20 * MIB]


def test_events_that_change_nothing_are_passed_over():
    segment = large((0, 20 * MIB, 0, OUT))
    events = [("alloc", 0, 5 * MIB), ("oom", 0, 10**12), ("snapshot", 0, 0), *freed(0, 5 * MIB)]
    assert replay(history(*events, segments=[segment])).totals() == [0, 5 * MIB, 0]


def test_a_history_that_lacks_events_is_refused():
    events = [("segment_alloc", 0, 2 * MIB), ("alloc", 0, 512)]
    with pytest.raises(ValueError, match="1 allocations and frees were recorded of 3"):
        replay(history(*events, stages=[("forward", 3)]))


def step_of_three():
    """A step that finds parameters at 0, saves an activation, and leaves a gradient where a temporary was."""
    blocks = [(0, 512, 512, ALL), (512, 512, 100, ALL), (1024, 512, 1, ALL), (1536, 2 * MIB - 1536, 0, OUT)]
    return history(
        ("alloc", 1536, 300),  # forward: copy of the weight
        ("alloc", 2048, 512),  # activation
        ("alloc", 2560, 512),  # temporary
        *freed(2560, 512),
        ("alloc", 2560, 400),  # backward: becomes the gradient
        *freed(1536, 300),
        *freed(2048, 512),
        *freed(1024, 1),  # what was there before the step
        ("alloc", 1024, 8),  # optimizer
        *freed(1024, 8),
        stages=[("forward", 4), ("backward", 8), ("optimizer", 10)],
        segments=[small(*blocks)],
        operators=[("_to_copy", 0, 1, True), ("mm", 1, 3, False), ("_fused_adamw_", 4, 5, False)],
        before={0: PARAMETERS, 512: OTHER_TENSORS},
        after={0: PARAMETERS, 512: OTHER_TENSORS, 2560: GRADIENTS},
    )


def test_categories_follow_owners_and_lifetimes():
    timeline = replay(step_of_three())
    assert [each.category for each in timeline.before] == [PARAMETERS, OTHER_TENSORS, UNCLASSIFIED]
    made = timeline.made()
    assert [each.category for each in made] == [WEIGHT_COPIES, ACTIVATIONS, TEMPORARIES, GRADIENTS, TEMPORARIES]
    assert [each.stage for each in made] == ["forward"] * 3 + ["backward", "optimizer"]
    assert [each.freed for each in made] == ["backward", "backward", "forward", "", "optimizer"]
    assert [each.operator for each in made] == ["_to_copy", "mm", "mm", "", "_fused_adamw_"]
    assert [each.milliseconds for each in made] == [6, 7, 1, None, 1]
    assert timeline.stages == [("forward", 0, 4), ("backward", 5, 8), ("optimizer", 9, 10)]


def test_levels_add_up_to_the_totals():
    timeline = replay(step_of_three())
    assert [sum(level.values()) for level in timeline.levels()] == timeline.totals()
    assert timeline.totals()[0] == 3 * 512
    before, after = timeline.levels_at([0, 10])
    assert before == dict.fromkeys(CATEGORIES, 0) | {
        PARAMETERS: 512,
        OTHER_TENSORS: 100,
        UNCLASSIFIED: 1,
        ROUNDING: 412 + 511,
    }
    assert after == before | {GRADIENTS: 400, UNCLASSIFIED: 0, ROUNDING: 412 + 112}


def test_without_a_backward_pass_what_survives_was_saved_for_it():
    segment = large((0, 20 * MIB, 0, OUT))
    events = [("alloc", 0, 2 * MIB), ("alloc", 2 * MIB, 2 * MIB), ("alloc", 4 * MIB, 2 * MIB), *freed(2 * MIB, 2 * MIB)]
    kept = replay(history(*events, segments=[segment], after={4 * MIB: OTHER_TENSORS})).made()
    assert [each.category for each in kept] == [ACTIVATIONS, TEMPORARIES, OTHER_TENSORS]
    other = replay(history(*events, segments=[segment], stages=[("optimizer", 4)])).made()
    assert [each.category for each in other] == [UNCLASSIFIED, TEMPORARIES, UNCLASSIFIED]


def test_kept_points_hold_each_stages_peak_in_order():
    """Stages of 3000 events, one and none."""
    events = [("segment_alloc", 0, 512 * MIB)]
    for index in range(1000):
        size = MIB * (1 + (index * 37) % 101)
        events += [("alloc", 0, size), *freed(0, size)]
    events.append(("alloc", 0, 7 * MIB))
    timeline = replay(history(*events, stages=[("forward", 2000), ("loss", 2001), ("optimizer", 2001)]))
    totals, kept = timeline.totals(), sample_positions(timeline)
    assert list(kept) == ["forward", "loss", "optimizer"]
    assert POINTS - 5 <= len(kept["forward"]) <= POINTS
    assert kept["forward"] == sorted(set(kept["forward"]))
    assert max(totals[position] for position in kept["forward"]) == max(totals) == 101 * MIB
    assert kept["loss"] == kept["optimizer"] == [2001]


def test_the_largest_allocations_come_in_groups_of_their_like():
    segment = large((0, 100 * MIB, 0, OUT))
    events = [("alloc", 0, 3 * MIB), ("alloc", 3 * MIB, 5 * MIB), ("alloc", 8 * MIB, 3 * MIB), ("alloc", 11 * MIB, MIB)]
    events += [("alloc", 20 * MIB, 3 * MIB), *freed(20 * MIB, 3 * MIB)]
    timeline = replay(history(*events, segments=[segment, large((20 * MIB, 20 * MIB, 0, OUT))]))
    groups = largest_groups(timeline, 3)
    assert [(group[0].requested // MIB, group[0].freed, len(group)) for group in groups] == [
        (5, "", 1),
        (3, "", 2),
        (3, "forward", 1),
    ]


def test_sources_are_lines_of_the_project_or_of_the_users_model():
    root = Path(__file__).parents[2]
    library = {"filename": "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", "line": 1, "name": "f"}
    instrument = {"filename": str(root / "cs336_systems/measure/memory_history.py"), "line": 2, "name": "g"}
    model = {"filename": str(root / "cs336_systems/model.py"), "line": 41, "name": "forward"}
    users = {"filename": "/home/someone/course/basics/model.py", "line": 7, "name": "forward"}
    assert source_of({"frames": [library, instrument, model, users]}) == "cs336_systems/model.py:41 forward"
    assert source_of({"frames": [library, users, model]}) == "basics/model.py:7 forward"
    assert source_of({"frames": [library]}) == source_of({"frames": []}) == source_of({}) == ""


def test_a_source_names_a_line_that_can_be_read():
    text = Path(__file__).read_text().splitlines()
    number = text.index("MIB = 2**20") + 1
    assert code_at(f"tests/measure/test_memory_timeline.py:{number} forward") == "MIB = 2**20"
    assert code_at("basics/model.py:7 forward") == code_at("") == ""


def test_operators_and_copies_of_weights_are_told_apart():
    """On a CPU operators are counted in place of allocations."""
    weight, x = torch.ones(3, 3, requires_grad=True), torch.ones(2, 3)
    calls = iter(range(10, 1000))
    log = OperatorLog([weight], lambda: next(calls))
    log.start = 10
    with log, torch.autocast("cpu", torch.bfloat16):
        torch.nn.functional.linear(torch.nn.functional.linear(x, weight), weight)
    assert [call.name for call in log.calls if call.copies_weight] == ["_to_copy"]  # once: autocast remembers it
    names = [call.name for call in log.calls]
    assert names.count("_to_copy") == 2  # the other one is x
    assert names.count("mm") == 2
    assert [(call.first, call.end) for call in log.calls][:2] == [(0, 1), (2, 3)]


def test_owners_are_the_tensors_of_a_training_step():
    shape = parse_size("t:d_model=8,d_ff=8,num_layers=1,num_heads=2")
    model = ours(shape, 32, 8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    step = TrainingStep(model, torch.randint(32, (2, 9)), optimizer=optimizer)
    for stage in step.stages("train_step").values():
        stage()
    owners = owners_of_training(model, optimizer, [step.inputs, step.logits, step.loss])
    count = len(list(model.parameters()))
    assert count == transformer.parameter_tensors(shape)
    expected = {PARAMETERS: count, GRADIENTS: count, OPTIMIZER_STATE: 3 * count, OTHER_TENSORS: 4}
    assert {name: list(owners.values()).count(name) for name in expected} == expected
    assert owners[model.lm_head.weight.grad.data_ptr()] == GRADIENTS
    assert step.inputs.data_ptr() in owners


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_step_replays_to_the_allocators_peak(path):
    recording = RECORDING.validate_json(path.read_bytes())
    timeline = replay(recording)
    assert max(timeline.totals()) == recording.peak
    shape, vocabulary = parse_size(CELL.size), CELL.vocab_size
    most = {category: max(level[category] for level in timeline.levels()) for category in CATEGORIES}
    assert most[PARAMETERS] == most[GRADIENTS] == 4 * transformer.parameters(shape, vocabulary)
    assert most[OPTIMIZER_STATE] == transformer.adamw_bytes(shape, vocabulary)
    assert most[WEIGHT_COPIES] == transformer.weight_copy_bytes(shape, vocabulary)
    assert most[UNCLASSIFIED] == 0
    assert most[ACTIVATIONS] > transformer.residual_bytes(shape, CELL.batch_size, CELL.context)
