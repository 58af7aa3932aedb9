"""The tables of docs/gpus.md: listed GPUs by class of chip, and the part of the plan that fits into their memory."""

from collections.abc import Iterator
from pathlib import Path

from cs336_systems.config import CONFIG
from cs336_systems.measure.gpus import GPUS, NVIDIA, Gpu, listed
from cs336_systems.plan import make_plan
from cs336_systems.run.forecast import TOO_LARGE, expected
from cs336_systems.yaml_file import read_mapping
from scripts.docs.markdown import table, with_table

SHOWN = ("RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090", "H200")
"""One GPU for each amount of memory."""
CLASSES = {
    (7, 5): ("Turing: T4, RTX 20", 64, "PyTorch's SDPA: Triton uses no tensor cores there"),
    (8, 0): ("Ampere: A100, A30", 163, "Triton kernels"),
    (8, 6): ("Ampere: RTX 30, RTX A, A10", 99, "Triton kernels, smaller tiles"),
    (8, 9): ("Ada: RTX 40, L4, L40S", 99, "Triton kernels, smaller tiles"),
    (9, 0): ("Hopper: H100, H200, GH200", 227, "its own kernels for 16-bit inputs, otherwise Triton kernels"),
    (10, 0): ("Blackwell: B200, GB200", 227, "Triton kernels"),
    (12, 0): ("Blackwell: RTX 50, RTX PRO", 99, "Triton kernels, smaller tiles"),
}
"""For each class: the GPUs, KB of shared memory per block (CUDA C++ Programming Guide, table 32), and the attention
that runs there. Tests compile the kernels within these limits."""


def page(text: str) -> str:
    """The text of the page with both tables."""
    header = ["class", "compute capability", "KB of shared memory", "attention", "data sheets listed"]
    text = with_table(text, "classes", table(header, map(class_row, CLASSES), right=[2]))
    return with_table(text, "memory", table(*memory_table(), right=range(1, 2 + len(SHOWN))))


def class_row(capability: tuple[int, int]) -> list[str]:
    """A row for a class of chip."""
    name, shared, attention = CLASSES[capability]
    models = [short(gpu) for gpu in GPUS if gpu.capability == capability]
    return [name, "sm_{}{}".format(*capability), str(shared), attention, ", ".join(models)]


def short(gpu: Gpu) -> str:
    """A GPU's name without vendor and brand."""
    return gpu.name.removeprefix(NVIDIA).removeprefix("Tesla ").removeprefix("GeForce ")


def memory_table() -> tuple[list[str], list[list[str]]]:
    """The header, and for each experiment the number of cells that fit into each GPU's memory."""
    gpus = [listed(name) for name in SHOWN]
    columns = [dict(cells_that_run(gpu)) for gpu in gpus]
    header = ["cells of", *(f"{gpu.memory / 1e9:.0f} GB" for gpu in gpus), "all"]
    counts = [
        [f"`{name}`", *(str(column[name][0]) for column in columns), str(of)] for name, (_, of) in columns[0].items()
    ]
    return header, counts


def cells_that_run(gpu: Gpu) -> Iterator[tuple[str, tuple[int, int]]]:
    """For each experiment the number of cells that may fit into one of four GPUs, and the number of all cells."""
    plan = make_plan(read_mapping(Path(CONFIG)) | {"machine": f"4 x {gpu.name}"})
    for name, jobs in plan.jobs.items():
        cells = [each.outcome != TOO_LARGE for each in expected(plan, gpu, jobs.values())]
        yield name, (sum(cells), len(cells))
