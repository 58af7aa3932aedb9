"""Two result folders compared cell by cell: `python -m cs336_systems.compare A B`.

No torch here. `statistics` can be used on its own: from times with their samples to verdicts on all of them together.
"""
