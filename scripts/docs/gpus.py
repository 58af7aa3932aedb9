"""The table of docs/gpus.md: listed GPUs by class of chip."""

from cs336_systems.measure.gpus import GPUS, NVIDIA
from scripts.docs.markdown import table, with_table

CLASSES = {
    (7, 5): ("Turing: T4, RTX 20", 64, "PyTorch's SDPA: Triton uses no tensor cores there"),
    (8, 0): ("Ampere: A100, A30", 163, "Triton kernels"),
    (8, 6): ("Ampere: RTX 30, RTX A, A10", 99, "Triton kernels, smaller tiles"),
    (8, 9): ("Ada: RTX 40, L4, L40S", 99, "Triton kernels, smaller tiles"),
    (9, 0): ("Hopper: H100, H200, GH200", 227, "Hopper kernels for 16-bit inputs, otherwise Triton kernels"),
    (10, 0): ("Blackwell: B200, GB200", 227, "Triton kernels"),
    (12, 0): ("Blackwell: RTX 50, RTX PRO", 99, "Triton kernels, smaller tiles"),
}
"""For each class: the GPUs, KB of shared memory per block (CUDA C++ Programming Guide, table 32), and the attention
that runs there. Tests compile the kernels within these limits."""


def page(text: str) -> str:
    """The text of the page with the table."""
    header = ["class", "compute capability", "KB of shared memory", "attention", "data sheets listed"]
    return with_table(text, "classes", table(header, map(class_row, CLASSES), right=[2]))


def class_row(capability: tuple[int, int]) -> list[str]:
    """A row for a class of chip."""
    name, shared, attention = CLASSES[capability]
    models = [short_name(gpu.name) for gpu in GPUS if gpu.capability == capability]
    return [name, "sm_{}{}".format(*capability), str(shared), attention, ", ".join(models)]


def short_name(gpu: str) -> str:
    """A GPU's name without vendor and brand."""
    return gpu.removeprefix(NVIDIA).removeprefix("Tesla ").removeprefix("GeForce ")
