"""Systems experiments for language-model training: the code measured, the instruments, and the experiments."""
