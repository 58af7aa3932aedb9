"""Parts of the training ladder: the rungs' steps, a step's parts timed alone, and training that checks whether they
learn.
"""
