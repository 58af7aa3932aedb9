"""Training steps at the hardware's speed: fused passes, updates and losses for any PyTorch loop."""
