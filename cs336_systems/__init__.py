"""Systems experiments for language-model training: the measured code, the instruments, and the experiments."""

__version__ = "0.2.0"
