"""What contenders share that are timed against each other: what they are compared with first, and their turns."""
