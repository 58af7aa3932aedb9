"""Ways to train on several ranks take turns: the parts of the experiments that compare them."""
