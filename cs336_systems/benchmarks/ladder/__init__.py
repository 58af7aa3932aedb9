"""What the training ladder measures: the rungs' steps, the card's floor, and training that tells whether they learn."""
