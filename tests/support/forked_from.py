"""Imports of the process from which ranks are forked. It ends without tearing them down, which takes a second."""

import atexit
import importlib
import os

atexit.register(os._exit, 0)
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # Otherwise these imports start CUDA, and no child could use it.
for module in ("pytest", "torch._inductor.compile_fx", "torch.distributed.fsdp", "torch.distributed.optim"):
    importlib.import_module(module)
