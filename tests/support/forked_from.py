"""Imports of the process from which ranks are forked. It ends without tearing them down, which takes a second."""

import atexit
import importlib
import os

atexit.register(os._exit, 0)
for module in ("pytest", "torch._inductor.compile_fx", "torch.distributed.fsdp", "torch.distributed.optim"):
    importlib.import_module(module)
