"""The names that rows may have are those that readers are told."""

from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.experiments.registry import EXPERIMENTS
from scripts.figures.training_timelines import NAMES
from scripts.views.comparison import COLLECTIVES, KINDS
from scripts.views.optimizer_sharding import HELD, SCHEME


def test_what_is_held_and_gathered_has_one_set_of_names():
    kinds = {name for kind in KINDS.values() for name in kind.vocabulary["kind"]}
    assert list(OptimizerSharding.vocabulary["part"]) == list(HELD)
    assert set(COLLECTIVES) <= set(NAMES) <= kinds


def test_each_listed_optimizer_has_a_closed_form():
    assert list(SCHEME) == [each.name for each in OptimizerSharding.contenders]


def test_a_vocabulary_is_of_columns_that_there_are():
    for kind in EXPERIMENTS.values():
        assert set(getattr(kind, "vocabulary", {})) <= set(kind.details)
