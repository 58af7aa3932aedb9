"""Bad configuration ends in one sentence, before anything runs."""

import pytest

from tests.workflow.project import copy_project, edit, snakemake

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        (
            "config.yaml",
            "strict: false",
            "strict: false\nspeed: fast",
            "unknown key 'speed' in the top level; allowed",
        ),
        ("config.yaml", "machine: auto", "machine: pdp-11", "config.yaml: machine is 'pdp-11'; allowed: auto, or what"),
        ("config.yaml", "recorded: none", "recorded: pdp-11", "recorded is 'pdp-11'; allowed: none, nvidia-h200"),
        ("config.yaml", "- 16\n", "- 0\n", "experiments.end_to_end.smoke.eager: context is 0; allowed: greater than"),
        (
            "config.yaml",
            "model:TransformerLM",
            "modell:TransformerLM",
            "no source file found for module 'cs336_",
        ),
        (
            "report/contents.yaml",
            "script: warmup",
            "script: cooldown",
            "figures.warmup.script is 'cooldown'; allowed",
        ),
    ],
)
def test_it_is_named_with_what_is_allowed(tmp_path, file, old, new, sentence):
    folder = copy_project(tmp_path)
    edit(folder / file, old, new)
    output = snakemake(folder, check=False)
    assert sentence in output
    assert "Traceback" not in output
    assert not (folder / "results").exists()
