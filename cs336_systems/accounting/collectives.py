"""Time of ring collectives: N devices in a ring, each sending to the next one at W bytes/s.

The model counts bytes alone: no latency per message, no time for the additions, and links that do not disturb each
other. It is the one of Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
who also show that no all-reduce can send less than the ring's.

`size` is in bytes, `bandwidth` in bytes/s, results are in seconds.
"""


def all_gather_seconds(size: float, devices: int | float, bandwidth: float) -> float:
    """From a shard of size/N on each device to the whole tensor of `size` on all of them.

    In each of N - 1 steps a device passes on the shard that it received in the step before: (N - 1)/N · S/W.
    """
    return (devices - 1) / devices * size / bandwidth
