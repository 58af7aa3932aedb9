"""Sentences on data-parallel wrappers: the naive one, sizes of buckets, the progression, and peer memory."""

import pandas
import pytest

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.measure.measurement import Measurement
from cs336_systems.measure.record import make_row
from scripts.answers import (
    beyond_nccl,
    ddp_bucketed_benchmarking,
    ddp_overlap_individual_parameters_benchmarking,
    naive_ddp_benchmarking,
)
from scripts.views.comparison import contenders
from scripts.views.data import frame
from scripts.views.progress import progress
from tests.prose import CPU, EVEN, GPU, NANO, UNEVEN, contest, filled, prose, table, took, training


def profiled(step, *, stretched=0.0, uncovered=0.0, idle=0.0, apart=EVEN, **others):
    """A contender's metrics: steps of so many ms, and what a profiled one has beyond a floor of 90 ms of compute."""
    compute = 90.0 + stretched
    busy = compute + uncovered
    profile = {
        "compute": compute,
        "communication": uncovered,
        "hidden": 0.0,
        "device_busy": busy,
        "timeline_length": busy + idle,
    }
    return took(step, apart, **profile | others)


def trained(*cells, origin=GPU, **setting):
    """A table of steps: each wrapper, with the MB of its buckets, and its ms or metrics."""
    metrics = [
        {name: found if isinstance(found, dict) else took(found) for name, found in cell.items()} for cell in cells
    ]
    return training(DataParallelTraining, ("wrapper", "bucket_mb"), metrics, origin, **setting)


def on_a_line(*processes, origin=GPU):
    """All-reduces of 1 ms a call and 1 ms for each MB."""
    backend = "nccl" if origin.gpu else "gloo"
    cells = {
        AllReduce(backend=backend, processes=count, megabytes=size): {"time": 1.0 + size}
        for count in processes
        for size in (1, 10, 100)
    }
    return table("all_reduce", origin, cells)


FLOOR = profiled(100.0)


@pytest.mark.parametrize(
    ("later", "sentence"),
    [
        # The earlier takes 120 ms in both cells; 120 / 100 and 120 / 80.
        ([100.0, 80.0], "_flat_ is faster in all 2 cells: 1.20× to 1.50× as fast (least with 2 GPUs, fp32, most with"),
        ([100.0], "Against _naive_, _flat_ is faster, 1.20× as fast."),
        ([profiled(120.0)], "_flat_ is not faster. The two steps are no further apart than their samples scatter."),
        (
            [profiled(120.0), profiled(120.0)],
            "_flat_ is not faster in any of the 2 cells. The two steps are no further apart than their samples scatter "
            "(2 GPUs, fp32; 4 GPUs, fp32).",
        ),
        # A median of 90 ms says nothing where the middle three fifths reach from 42 to 138.
        (
            [100.0, profiled(90.0, apart=[-80.0, 80.0])],
            "_flat_ is faster in 1 of 2 cells, at most 1.20× as fast (2 GPUs, fp32). The two steps are no further "
            "apart than their samples scatter (4 GPUs, fp32).",
        ),
    ],
)
def test_a_step_of_the_progression(later, sentence):
    assert sentence in against(*({"none": FLOOR, "naive": profiled(120.0), "flat": found} for found in later))


def against(*cells):
    """What is said of the flat wrapper against the naive one."""
    return filled(
        "partials/progress",
        g=progress(DataParallelTraining, contenders(DataParallelTraining, trained(*cells)), ["naive"], ["flat"]),
    )


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        # It takes 10 ms more, of which a part of the profiled step must show more than 5.
        (
            {"stretched": 6.0, "idle": 4.0},
            "slower by 10.0 ms: in the profiled step compute takes 6.00 ms longer beside",
        ),
        ({"uncovered": 6.0, "idle": 4.0}, "slower by 10.0 ms: in the profiled step 6.00 ms more of its communication"),
        (
            {"idle": 6.0, "stretched": 4.0},
            "slower by 10.0 ms: in the profiled step the device is idle for 6.00 ms long",
        ),
        ({"idle": 5.0, "stretched": 5.0}, "slower by 10.0 ms; no single part of the profiled step accounts for it."),
    ],
)
def test_why_a_step_is_slower(parts, sentence):
    text = against({"none": FLOOR, "naive": profiled(120.0), "flat": profiled(130.0, **parts)})
    assert sentence in text
    assert "no column says why" not in text


def test_cells_in_which_a_step_is_slower_and_no_column_says_why():
    text = against({"none": 100.0, "naive": 120.0, "flat": 130.0}, {"none": 100.0, "naive": 120.0, "flat": 125.0})
    assert "slower by 5.00 ms to 10.0 ms (2 GPUs, fp32; 4 GPUs, fp32); no column says why." in text
    slower = [profiled(130.0, idle=10.0), profiled(125.0, idle=5.0)]
    text = against(*({"none": FLOOR, "naive": profiled(120.0), "flat": found} for found in slower))
    assert "(2 GPUs, fp32; 4 GPUs, fp32): in the profiled step the device is idle for 5.00 ms to 10.0 ms longer" in text


def naive(*cells, origin=GPU, lines=(), **setting):
    """The section on the naive wrapper; the all-reduces of as many processes as `lines` names are on a line."""
    tables = {
        "data_parallel": trained(*cells, origin=origin, **setting),
        "all_reduce": on_a_line(*lines, origin=origin),
    }
    return prose("naive_ddp_benchmarking", naive_ddp_benchmarking.answers(tables), origin)


@pytest.mark.parametrize(
    ("took", "sentence"),
    [
        # On the line 12 calls of 1 ms and 18 MB at 1 ms each: 30 ms.
        ([33.0], "gives 30.0 ms, 12.0 ms of it the calls' overhead. Measured are 1.10× of that, as expected."),
        ([24.0], "Measured are 0.80× of that, less than those calls take by themselves."),
        ([60.0], "Measured are 2.00× of that."),
        ([24.0, 60.0], "Measured are 0.80× to 2.00× of that, the most with 4 GPUs, fp32."),
        ([27.0, 33.0], "Measured are 0.90× to 1.10× of that, as expected."),
    ],
)
def test_messages_beside_the_line(took, sentence):
    sent = {"messages": 12.0, "communicated": 18.0}
    cells = [{"none": 100.0, "naive": {"step": [150.0] * 2, "synchronization": ms} | sent} for ms in took]
    text = naive(*cells, lines=(2, 4))
    assert sentence in text
    assert "The wrapper all-reduces 12 gradients one by one, 18.0 MB together." in text
    assert "For so many calls" not in naive(*cells)


def test_gigabytes_and_the_share_of_communication():
    def phases(communication):
        ms = {"forward": 20.0, "backward": 50.0, "synchronization": communication, "optimizer": 10.0}
        return ms | {"step": [80.0 + communication] * 2, "messages": 10.0, "communicated": 2500.0}

    # 20 of 100 and 120 of 200 ms; 20 and 120 beyond the floor.
    text = naive({"none": 80.0, "naive": phases(20.0)})
    assert "Timed by itself, communication takes 20 % of the step. Against the floor, 20 % of the step is" in text
    assert "2.50 GB together." in text
    text = naive({"none": 80.0, "naive": phases(20.0)}, {"none": 80.0, "naive": phases(120.0)})
    assert "takes 20 % to 60 % of the step, least with 2 GPUs, fp32, most with 4 GPUs, fp32." in text
    assert "Against the floor, 20 % to 60 % of the step is exposed communication." in text


@pytest.mark.parametrize(("shorter", "negative"), [(0.0, False), (10.0, True)])
def test_a_step_that_is_shorter_than_the_floors(shorter, negative):
    text = naive({"none": 100.0, "naive": 100.0 - shorter})
    assert ("where the samples scatter, it may come out below zero" in text) == negative


def test_a_floor_that_differs_between_rounds():
    def rounds(second):
        steps = [100.0] * 2 + [second] * 2
        cell = DataParallelTraining(size="nano", rounds=2, steps=2)
        found = [({"wrapper": name}, {"step": steps}) for name in ("none", "naive")]
        tables = {"data_parallel": contest("data_parallel", GPU, {cell: found}), "all_reduce": on_a_line()}
        return prose("naive_ddp_benchmarking", naive_ddp_benchmarking.answers(tables), GPU)

    assert "With 2 GPUs, fp32 the floor itself differs by more than 50 % between rounds" in rounds(160.0)
    assert "the floor itself" not in rounds(140.0)
    assert "They take turns in 2 rounds: in" in rounds(140.0)
    assert "They take turns in 1 round: in" in naive({"none": 100.0})


def test_who_sets_the_pace():
    # 90 ms of work in 100 or 120 ms; one contender that waits does not make its cell wait for the host.
    busy, waiting = profiled(100.0, idle=10.0), profiled(120.0, idle=30.0)
    text = naive({"none": busy, "naive": busy, "flat": waiting}, {"none": waiting, "naive": waiting, "flat": busy})
    assert (
        "With 4 GPUs, fp32 the host sets the pace: in the median of the contenders a device is busy for only 75 % of "
        "the profiled step. These cells are _host-bound_: their times are shown, but nothing is concluded from them."
        in text
    )
    assert "4 GPUs, fp32, host-bound; floor 120.0 ms" in text
    assert "Against the floor, 0 % of the step is exposed" in text
    assert "the host sets the pace" not in naive({"none": busy, "naive": busy})
    assert "nothing is concluded from them, so it cannot be told here what is faster." in naive({"none": waiting})
    assert "One more step is recorded by the profiler" in text
    assert "One more step is recorded by the profiler" not in naive({"none": 100.0})


def test_what_is_measured_in_host_bound_cells_only_cannot_be_told():
    waiting = {
        "none": profiled(120.0, idle=30.0),
        "naive": profiled(150.0, idle=60.0),
        "flat": profiled(90.0, idle=30.0),
    }
    busy = {"none": FLOOR, "naive": profiled(120.0), "flat": profiled(120.0)}
    told = "Whether _flat_ is faster than _naive_ cannot be told: it was measured in host-bound cells only."
    assert told in against(waiting)
    text = against(waiting, busy)
    assert "_flat_ is not faster. The two steps are no further apart" in text
    assert told not in text
    tried = {"none": profiled(120.0, idle=30.0), "bucketed 100": profiled(150.0, idle=60.0)}
    text = beyond(tried | {"grouped 100": profiled(130.0, idle=40.0)}, tried=True)
    assert "Which of them is faster cannot be told: all were measured in host-bound cells only." in text
    assert "han plain buckets than the samples" not in text


@pytest.mark.parametrize(("backward", "parts"), [(50.0, True), (80.0, False)])
def test_phases_that_do_not_add_up_are_no_parts_of_the_step(backward, parts):
    phases = {"forward": 20.0, "backward": backward, "synchronization": 20.0, "optimizer": 10.0}
    text = naive({"none": 80.0, "naive": took(100.0, **phases)})
    assert ("Timed by itself, communication takes 20 % of the step." in text) == parts
    assert ("add up to the step within 10 %, they are not parts of it and are left out." in text) != parts


@pytest.mark.parametrize(("apart", "marked"), [(EVEN, False), (UNEVEN, True)])
def test_steps_that_scatter_are_marked(apart, marked):
    text = naive({"none": 100.0, "naive": profiled(100.0, apart=apart)})
    assert ("(\\* more than 5.0 % of the median apart)" in text) == marked


def test_why_no_step_was_profiled():
    skipped = Measurement(metric="device_busy", unit="ms", status="skipped", message="the host computes")
    row = make_row(DataParallelTraining(**NANO), skipped, CPU)
    found = pandas.concat([trained({"none": 100.0}, origin=CPU), frame("data_parallel", [row])], ignore_index=True)
    tables = {"data_parallel": found, "all_reduce": on_a_line(origin=CPU)}
    text = prose("naive_ddp_benchmarking", naive_ddp_benchmarking.answers(tables), CPU)
    assert "How much communication runs beside compute is not shown: the host computes." in text
    assert "How much communication runs beside" not in naive({"none": 100.0})


def test_compiled_wrappers():
    cell = {"none": 100.0}
    gpu, cpu = naive(cell, compiled=True), naive(cell, compiled=True, origin=CPU)
    assert "gradients arrive block by block for every wrapper, and the whole step is replayed from a CUDA graph" in gpu
    assert "gradients arrive block by block for every wrapper. They take turns" in cpu
    assert "it is _compiled_" not in naive(cell)


def overlapped(*cells, origin=GPU):
    found = ddp_overlap_individual_parameters_benchmarking.answers({"data_parallel": trained(*cells, origin=origin)})
    return prose("ddp_overlap_individual_parameters_benchmarking", found, origin)


@pytest.mark.parametrize(("stretched", "told"), [(9.0, True), (0.5, False)])
def test_what_hidden_communication_costs(stretched, told):
    # Of 90 ms of compute.
    text = overlapped({"none": FLOOR, "overlapped": profiled(120.0, stretched=stretched)})
    assert ("the same compute takes up to 1.10× as long as without (2 GPUs, fp32, column _compute_)" in text) == told


def test_what_the_drawn_steps_cover():
    # Naive hides none of 20 ms; overlapped 10 of 20, and 15 of 20 between 4.
    half, most = ({"communication": 20.0, "hidden": hidden} for hidden in (10.0, 15.0))
    cell = {"none": FLOOR, "naive": profiled(120.0, uncovered=20.0), "overlapped": profiled(110.0) | half}
    text = overlapped(cell)
    drawn = "with 2 GPUs, fp32. Covered by compute are 0 % of 20.0 ms (naive), 50 % of 20.0 ms (overlapped)."
    assert f"@fig-ddp_timelines shows the profiled steps {drawn}" in text
    assert "Over all cells the overlapped wrapper hides 50 % of its communication." in text
    assert "hides 50 % to 75 % of its" in overlapped(cell, {"none": FLOOR, "overlapped": profiled(110.0) | most})
    assert "Over all cells the" not in overlapped({"none": FLOOR, "naive": profiled(120.0, uncovered=20.0)})


@pytest.mark.parametrize(
    ("origin", "why"), [(GPU, "No step was profiled. "), (CPU, ": a trace of kernels needs a GPU. ")]
)
def test_steps_that_nobody_profiled(origin, why):
    assert why in overlapped({"none": 100.0, "overlapped": 110.0}, origin=origin)


def bucketed(*cells, lines=(), **setting):
    """The section on buckets; the all-reduces of as many processes as `lines` names are on a line."""
    tables = {"data_parallel": trained(*cells, **setting), "all_reduce": on_a_line(*lines)}
    return prose("ddp_bucketed_benchmarking", ddp_bucketed_benchmarking.answers(tables), GPU)


@pytest.mark.parametrize(
    ("large", "sentences", "absent"),
    [
        # Buckets of 1 MB: 120 ms in both cells.
        ([110.0], ["Buckets of 25~MB have the shortest step with 2 GPUs, fp32."], "size is as fast"),
        ([110.0, 110.0], ["Buckets of 25~MB have the shortest step in all 2 cells."], "size is as fast"),
        (
            [110.0, 130.0],
            [
                "Buckets of 25~MB have the shortest step with 2 GPUs, fp32.",
                "Buckets of 1~MB have the shortest step with 4 GPUs, fp32.",
            ],
            "in all 2 cells",
        ),
        ([120.0], ["Another size is as fast to within the scatter of the samples."], "In 1 of"),
        ([110.0, 120.0], ["In 1 of 2 cells another size is as fast to within the scatter"], "Another size"),
    ],
)
def test_the_best_size_of_buckets(large, sentences, absent):
    text = bucketed(*({"none": 100.0, "bucketed 1": 120.0, "bucketed 25": ms} for ms in large))
    for sentence in sentences:
        assert sentence in text
    assert absent not in text


def test_two_cells_of_three_have_the_same_best_size():
    cells = [{"none": 100.0, "bucketed 1": ms, "bucketed 25": 120.0} for ms in (110.0, 110.0, 130.0)]
    assert "Buckets of 1~MB have the shortest step with 2 GPUs, fp32; 4 GPUs, fp32." in bucketed(*cells)


def test_buckets_that_hold_all_gradients():
    whole = {"step": [110.0] * 2, "messages": 1.0}
    cell = {"none": 100.0, "bucketed 25": {"step": [110.0] * 2, "messages": 2.0}, "bucketed 100": whole}
    assert "holds all gradients" not in bucketed(cell)
    text = bucketed(cell | {"bucketed 1000": whole})
    assert "One bucket of 100~MB holds all gradients, so larger ones differ from it by chance alone." in text


def test_what_is_drawn_needs_a_floor():
    text = bucketed({"none": 100.0, "bucketed 1": 120.0})
    assert "@tab-bucketed and @fig-ddp_bucket_sizes show what it does." in text
    assert "@fig-ddp_exposed shows what each wrapper exposes." in text
    assert {"<fig-ddp_bucket_sizes>", "<fig-ddp_exposed>"} <= set(text.split())
    text = bucketed({"bucketed 1": 120.0})
    assert "@tab-bucketed shows what it does." in text
    assert "fig-ddp" not in text


def progression(naive, flat, overlapped, bucketed):
    return {"none": 100.0, "naive": naive, "flat": flat, "overlapped": overlapped, "bucketed 25": bucketed}


HELD, FLAT_SLOWER = progression(140.0, 130.0, 120.0, 110.0), progression(140.0, 150.0, 120.0, 110.0)


@pytest.mark.parametrize(
    ("cells", "sentences"),
    [
        ([HELD], ["buckets at least as fast as overlapped, holds."]),
        ([progression(140.0, 130.0, 120.0, 120.0)], ["buckets at least as fast as overlapped, holds."]),
        ([HELD, HELD], ["holds in all 2 cells."]),
        ([FLAT_SLOWER], ["does not hold. It fails between naive and flat. The reasons are"]),
        ([HELD, FLAT_SLOWER], ["holds in 1 of 2 cells. It fails between naive and flat with 4 GPUs, fp32."]),
        ([FLAT_SLOWER] * 2, ["holds in 0 of 2 cells. It fails between naive and flat in every cell."]),
        (
            [FLAT_SLOWER, HELD, FLAT_SLOWER],
            ["holds in 1 of 3 cells. It fails between naive and flat with 2 GPUs, fp32; 6 GPUs, fp32."],
        ),
        (
            [progression(140.0, 130.0, 130.0, 135.0)],
            ["It fails between flat and overlapped. It fails between overlapped and bucketed."],
        ),
    ],
)
def test_whether_the_order_holds(cells, sentences):
    text = bucketed(*cells)
    for sentence in sentences:
        assert sentence in text
    assert ("The reasons are with each pair of wrappers" in text) == ("fails" in sentences[0])


def modelled(small, large, *, stretched=0.0):
    """A cell of two sizes of buckets whose backward pass takes 50 ms, and which send 20 MB."""
    sent = {"communicated": 20.0}
    return {
        "none": FLOOR | {"backward": 50.0},
        "bucketed 1": profiled(small, messages=20.0, **sent),
        "bucketed 10": profiled(large, messages=2.0, stretched=stretched, **sent),
    }


@pytest.mark.parametrize(
    ("cells", "sentences"),
    [
        # n calls of 1 ms and 20 MB at 1 ms each: the last one of 20 leaves 1 + 20 / 20 = 2 ms, as all fit beside the
        # backward pass; of 2 calls 11 ms are left.
        (
            [modelled(102.0, 111.0)],
            ["or as fast as the samples tell, in 1 of 1 cell.", "Its largest error is 0 ms, with 2 GPUs, fp32, where"],
        ),
        (
            [modelled(140.0, 131.0)],
            ["or as fast as the samples tell, in 0 of 1 cell.", "is 20.0 ms, with 2 GPUs, fp32, where 31.0 ms are exp"],
        ),
        (
            [modelled(102.0, 111.0), modelled(140.0, 131.0)],
            [
                "These are the figures with 2 GPUs, fp32. @tab-bucket-model has them",
                "or as fast as the samples tell, in 1 of 2 cells.",
                "is 20.0 ms, with 4 GPUs, fp32, where 31.0 ms are exposed.",
            ],
        ),
    ],
)
def test_the_model_beside_what_was_measured(cells, sentences):
    text = bucketed(*cells, lines=(2, 4))
    for sentence in sentences:
        assert sentence in text
    assert ("These are the figures with" in text) == (len(cells) > 1)
    assert "The model knows nothing of compute" not in text


@pytest.mark.parametrize(("stretched", "blamed"), [(11.0, True), (9.0, False)])
def test_compute_that_slows_down_is_named_where_it_stands_for_most_of_the_error(stretched, blamed):
    # 20 ms more than the model predicts.
    text = bucketed(modelled(140.0, 131.0, stretched=stretched), lines=(2,))
    assert ("in that cell's profiled step it takes 11.0 ms longer than the floor's" in text) == blamed


def test_a_model_without_figures():
    cell = modelled(102.0, 111.0)
    assert "The constants have no figures here" in bucketed(cell)
    unsteady = {"wrapper": "none"}, {"step": [100.0, 100.0, 200.0, 200.0], "backward": 50.0}
    found = {"wrapper": "bucketed", "bucket_mb": "1"}, {"step": [100.0] * 4, "communicated": 20.0, "messages": 20.0}
    rounds = {DataParallelTraining(size="nano", rounds=2, steps=2): [unsteady, found]}
    tables = {"data_parallel": contest("data_parallel", GPU, rounds), "all_reduce": on_a_line(2)}
    text = prose("ddp_bucketed_benchmarking", ddp_bucketed_benchmarking.answers(tables), GPU)
    assert "or as fast as the samples tell" in text
    assert "Its largest error" not in text


def beyond(*cells, origin=GPU, **setting):
    return prose(
        "beyond_nccl", beyond_nccl.answers({"data_parallel": trained(*cells, origin=origin, **setting)}), origin
    )


def test_peer_memory_in_the_words_of_its_device():
    cell = {"none": 100.0, "peer_memory 25": {"step": [104.0] * 2, "outside_memory": 512.0}}
    gpu, cpu = beyond(cell), beyond(cell, origin=CPU)
    for text, others, words in (
        (gpu, cpu, ["Gradients over copy engines:", "A collective of NCCL is a kernel:", "_outside_: device memory"]),
        (cpu, gpu, ["Gradients through shared memory:", "sends no gradient through a socket."]),
    ):
        for said in words:
            assert said in text
            assert said not in others


@pytest.mark.parametrize(
    ("ours", "sentence"),
    [
        ([104.0], "Peer memory exposes 4.00 ms of communication. "),
        ([104.0, 110.0], "exposes 4.00 ms to 10.0 ms of communication (least with 2 GPUs, fp32, most with 4 GPUs, f"),
    ],
)
def test_what_peer_memory_exposes(ours, sentence):
    text = beyond(*({"none": 100.0, "peer_memory 25": ms} for ms in ours))
    assert sentence in text
    assert "What limits the rest" not in text


def test_peer_memory_without_a_floor_or_not_at_all():
    text = beyond({"peer_memory 25": 104.0})
    assert "Peer memory exposes" not in text
    assert "was measured in no cell" not in text
    assert "was measured in no cell" in beyond({"none": 100.0})


@pytest.mark.parametrize(
    ("ours", "sentence", "spared"),
    [
        # Beside the NCCL kernels of our buckets compute takes 8 and 10 ms longer; at most half of that is far less.
        (
            [2.0, 5.0],
            "Compute takes 8.00 ms to 10.0 ms longer beside the NCCL kernels of our best buckets, and 2.00",
            True,
        ),
        ([2.0, 6.0], "and 2.00 ms to 6.00 ms beside peer memory's copies and sums.", False),
    ],
)
def test_what_slows_compute_down(ours, sentence, spared):
    text = beyond(
        *(
            {
                "none": FLOOR,
                "bucketed 25": profiled(120.0, stretched=his),
                "peer_memory 25": profiled(110.0, stretched=own),
            }
            for his, own in zip((8.0, 10.0), ours, strict=True)
        )
    )
    assert sentence in text
    assert ("what slows compute down is, for the most part, the kernels, not the bytes" in text) == spared


def test_the_largest_part_of_what_is_left():
    longer, waits = profiled(110.0, stretched=4.0, idle=3.0), profiled(110.0, stretched=3.0, idle=5.0)
    text = beyond({"none": FLOOR, "peer_memory 25": longer}, {"none": FLOOR, "peer_memory 25": waits})
    assert "The largest part of peer memory's is longer compute with 2 GPUs, fp32, 4.00 ms." in text
    assert "The largest part of peer memory's is idle device with 4 GPUs, fp32, 5.00 ms." in text
    assert "Compute takes" not in text
    text = beyond(
        {"none": FLOOR, "peer_memory 25": waits}, {"none": FLOOR, "peer_memory 25": profiled(110.0, idle=7.0)}
    )
    assert "The largest part of peer memory's is idle device in 2 cells, 5.00 ms to 7.00 ms." in text


@pytest.mark.parametrize(
    ("ms", "sentence"),
    [
        # Plain buckets take 120 ms, peer memory 110.
        (
            [105.0],
            "Faster than plain buckets by more than the samples scatter: grouped, no copies. A shorter median st",
        ),
        ([115.0], "Faster than plain buckets by more than the samples scatter: grouped, no copies. None of them has a"),
        ([120.0], "No further from plain buckets than the samples scatter: grouped, no copies. None of them has a sho"),
        ([130.0], "Slower than plain buckets by more than the samples scatter: grouped, no copies. None of them has a"),
        (
            [105.0, 130.0],
            "Faster than plain buckets by more than the samples scatter: grouped, no copies (2 GPUs, fp32). Slower "
            "than plain buckets by more than the samples scatter: grouped, no copies (4 GPUs, fp32). "
            "A shorter median step than peer memory's: grouped, no copies (2 GPUs, fp32).",
        ),
    ],
)
def test_what_was_tried(ms, sentence):
    cells = [{"none": 100.0, "bucketed 100": 120.0, "grouped 100": own} for own in ms]
    text = beyond(*(cell | {"peer_memory 100": 110.0} for cell in cells), tried=True)
    assert sentence in text
    assert "travelled as bf16" not in text
    text = beyond(*cells, tried=True)
    assert sentence.partition(". None")[0].partition(" A shorter")[0] in text
    assert "a shorter median step than" not in text.lower()


@pytest.mark.parametrize("origin", [GPU, CPU])
def test_the_words_for_what_was_tried_are_the_devices(origin):
    sent = {"step": [110.0] * 2, "gradient_error": 0.002}
    cell = {"none": 100.0, "bucketed 100": 120.0, "bf16_wire 100": sent}
    text = beyond(cell, tried=True, origin=origin)
    assert ("_High-priority stream_" in text) == bool(origin.gpu)
    assert f"over {'NCCL' if origin.gpu else 'Gloo'} beside the plain ones" in text
    assert "The gradients that travelled as bf16 are off by 0.20 %." in text
    assert "What was tried" not in beyond(cell | {"bf16_wire 100": {}}, origin=origin)
