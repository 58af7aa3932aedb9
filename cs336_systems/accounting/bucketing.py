"""Exposed communication of bucketed gradient reduction, and the best bucket size.

The n buckets are of equal size. A bucket's gradients take backward/n to compute, one bucket after the other; its
all-reduce takes o + s/(n w) and starts as soon as its gradients are ready and the previous all-reduce is done.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BucketedReduction:
    """The gradients of a model and the cost of reducing them."""

    size: float
    """s, bytes of all gradients."""
    bandwidth: float
    """w, bytes/s: a call's bytes on one rank divided by its time, without the overhead."""
    call_seconds: float
    """o, the overhead of a call."""
    backward_seconds: float | None = None
    """Duration of the backward pass; None: as long as the communication, s/w, as in the handout."""

    @property
    def backward(self) -> float:
        """Seconds of the backward pass."""
        return self.size / self.bandwidth if self.backward_seconds is None else self.backward_seconds

    def overhead(self, buckets: float) -> float:
        """Seconds from the end of the backward pass to the end of the last all-reduce.

        Let k = o + s/(n w) be the time of a call and c = backward/n. If k <= c, each call is done before the next one's
        gradients are ready, and only the last one remains: k. Otherwise the link is never idle once it has started,
        after c, and is done at c + n k: (c + n k) - n c = k + (n - 1)(k - c). With c = s/(n w) this is s/(n w) + n o.
        """
        call = self.call_seconds + self.size / (buckets * self.bandwidth)
        return call + (buckets - 1) * max(call - self.backward / buckets, 0)

    @property
    def best_buckets(self) -> float:
        """The unrounded number of buckets with the smallest overhead.

        The overhead falls with n as long as the link is sometimes idle, up to n = (backward - s/w)/o. Beyond, it is
        backward/n + n o plus a constant, whose derivative is 0 at n = √(backward/o). The larger of the two is the best,
        and at least 1. With backward = s/w this is √(s/(w o)).
        """
        idle = (self.backward - self.size / self.bandwidth) / self.call_seconds
        return max(math.sqrt(self.backward / self.call_seconds), idle, 1)

    @property
    def best_bucket_size(self) -> float:
        """Bytes of a bucket at the smallest overhead: s over the number of buckets; √(s w o) with backward = s/w."""
        return self.size / self.best_buckets

    @property
    def least_overhead(self) -> float:
        """Seconds, at the best number of buckets: 2 √(s o/w) with backward = s/w."""
        return self.overhead(self.best_buckets)
