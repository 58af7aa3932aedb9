"""Every experiment by name. To add one: its parameters here, its measurement in `benchmarks` under the same name."""

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.autocast_dtypes import AutocastDtypes
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.flash_ablation import FlashAblation

EXPERIMENTS: dict[str, type[Experiment]] = {
    experiment.name: experiment
    for experiment in (EndToEnd, Accumulation, AutocastDtypes, Attention, Flash, FlashAblation)
}
