"""Systems experiments for language-model training: the code measured, the instruments, and the experiments."""

__version__ = "0.1.0"
