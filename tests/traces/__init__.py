"""Training steps of one-block models whose kernels can be counted, and traces of them recorded on a GPU.

`python -m tests.traces` records the traces again.
"""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from cs336_systems.measure.compact_trace import compact, write_events
from cs336_systems.measure.kernel_names import categorize, is_product
from cs336_systems.measure.kernel_profile import recording, run_steps
from cs336_systems.measure.trace import Kernel, Trace, read_events
from cs336_systems.model import build_model
from cs336_systems.sizes import ModelShape
from cs336_systems.training_step import TrainingStep

FOLDER = Path(__file__).parent
SHAPE = ModelShape(d_model=64, d_ff=256, num_layers=1, num_heads=2)
BATCH, CONTEXT, VOCABULARY = 2, 48, 500
MODELS: dict[str, dict] = {
    "eager": {},
    "bf16": {"precision": "bf16"},
    "flash": {"attention": "flash", "precision": "bf16"},
    "compiled": {"compiled": True, "precision": "bf16"},
    "checkpointed": {"model": "tests.support.models:CheckpointedLM"},
    "checkpointed_reentrant": {"model": "tests.support.models:ReentrantLM"},
    "two_streams": {"model": "tests.support.models:TwoStreamsLM"},
}


def make_step(name: str, device: torch.device) -> TrainingStep:
    """A step of one of MODELS with AdamW."""
    options = {"model": "cs336_systems.model:TransformerLM", "attention": "plain"} | MODELS[name]
    torch.manual_seed(0)
    made = build_model(
        options.pop("model"),
        SHAPE,
        vocab_size=VOCABULARY,
        context_length=CONTEXT,
        attention=options.pop("attention"),
        device=device,
    )
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), device=device)
    return TrainingStep(made, tokens, optimizer=torch.optim.AdamW(made.parameters(), fused=True), **options)


def record(step: TrainingStep, path: Path, device: torch.device) -> None:
    """Write the compact trace of a training step after warm-up."""
    stages = step.stages("train_step")
    # All of a block is computed again, also what no saved tensor needs, so that it can be counted.
    with set_checkpoint_early_stop(False), TemporaryDirectory() as folder:
        run_steps(stages, 2, device)
        with recording(step.forward_model, device, Path(folder, "trace.json")):
            run_steps(stages, 1, device)
        write_events(path, compact(read_events(Path(folder, "trace.json"))))


def category(kernel: Kernel) -> str:
    assert kernel.stage, kernel
    return categorize(kernel.name, operator=kernel.operator, stage=kernel.stage.name, range_=kernel.range)


def counted(trace: Trace, wanted: str = "matmul") -> dict[tuple[str, str], int]:
    """Kernels of a category in the whole trace, by stage and range; parts of one product count once."""
    return Counter(
        (kernel.stage.name, kernel.range)
        for kernel in trace.kernels
        if category(kernel) == wanted and is_product(kernel.name)
    )


def by_stage(launches: dict[tuple[str, str], int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for (stage, _), number in launches.items():
        total[stage] += number
    return dict(total)
