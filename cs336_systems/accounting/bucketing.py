"""Exposed communication of bucketed gradient reduction, and the best bucket size.

The n buckets are of equal size. A bucket's gradients take s/(n w) to compute, one bucket after the other; its
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

    def overhead(self, buckets: float) -> float:
        """Seconds from the end of the backward pass to the end of the last all-reduce: s/(n w) + n o.

        The link is never idle once it has started, after s/(n w), and is done after another n o + s/w.
        """
        return self.size / (buckets * self.bandwidth) + buckets * self.call_seconds

    @property
    def best_buckets(self) -> float:
        """The unrounded number of buckets with the smallest overhead: √(s/(w o)), at least 1."""
        return max(math.sqrt(self.size / self.bandwidth / self.call_seconds), 1)

    @property
    def best_bucket_size(self) -> float:
        """Bytes of a bucket at the smallest overhead: √(s w o), at most s."""
        return self.size / self.best_buckets

    @property
    def least_overhead(self) -> float:
        """Seconds, at the best number of buckets: 2 √(s o/w)."""
        return self.overhead(self.best_buckets)
