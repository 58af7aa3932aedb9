"""What makes contenders that train on several ranks, as their entries in the experiments name it."""
