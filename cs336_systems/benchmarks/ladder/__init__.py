"""Parts of the training ladder: the rungs' steps, the card's floor, and training that tells whether they learn."""
