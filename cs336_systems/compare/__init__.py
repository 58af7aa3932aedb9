"""Two result folders compared cell by cell: `python -m cs336_systems.compare A B`.

No torch here. `statistics` can be used by itself: times with their samples in, verdicts for all of them together out.
"""
