"""The model of bucketed gradient reduction against schedules that are simulated event by event."""

import math

import pytest

from cs336_systems.accounting.bucketing import BucketedReduction

CASES = [
    BucketedReduction(size=8e9, bandwidth=3e11, call_seconds=2e-5),
    BucketedReduction(size=1.7e7, bandwidth=9e9, call_seconds=3e-4),
    BucketedReduction(size=1e3, bandwidth=1e9, call_seconds=1e-2),  # one call costs more than all bytes
]


def left_after_backward(model, buckets):
    """Play a schedule: a bucket is reduced when its gradients are there and the one before it is done."""
    ready = done = 0.0
    for _ in range(buckets):
        ready += model.size / model.bandwidth / buckets
        done = max(ready, done) + model.call_seconds + model.size / buckets / model.bandwidth
    return done - ready


@pytest.mark.parametrize("model", CASES)
@pytest.mark.parametrize("buckets", [1, 2, 3, 7, 100, 999])
def test_the_overhead_is_that_of_the_schedule(model, buckets):
    assert model.overhead(buckets) == pytest.approx(left_after_backward(model, buckets), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("model", CASES)
def test_no_number_of_buckets_beats_the_best(model):
    scanned = {buckets: left_after_backward(model, buckets) for buckets in range(1, 1500)}
    least = min(scanned.values())
    best = model.best_buckets
    if best <= 1499:
        around = {max(math.floor(best), 1), math.ceil(best)}
        assert min(scanned[buckets] for buckets in around) == pytest.approx(least, rel=1e-9)
    assert model.least_overhead <= least * (1 + 1e-9)
    assert model.best_bucket_size == model.size / best


def test_the_handouts_formulas():
    model = CASES[0]
    s, w, o = model.size, model.bandwidth, model.call_seconds
    assert model.overhead(50) == pytest.approx(s / (50 * w) + 50 * o)
    assert model.best_bucket_size == pytest.approx(math.sqrt(s * w * o))
    assert model.least_overhead == pytest.approx(2 * math.sqrt(s * o / w))
