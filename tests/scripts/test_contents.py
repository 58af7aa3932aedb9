"""The list of what the report holds: every mistake ends in one sentence."""

import copy
import shutil

import pytest
import yaml

from scripts.rendering.contents import read_contents
from tests.samples import ROOT

CONTENTS = yaml.safe_load((ROOT / "report" / "contents.yaml").read_text())


@pytest.mark.parametrize(
    ("keys", "value", "sentence"),
    [
        ("figures.roofline.colour", "red", "unknown key 'colour' in figures.roofline; allowed: script, table, "),
        ("figures.roofline.script", "pie", "figures.roofline.script is 'pie'; allowed: .*flash, .*roofline, "),
        ("figures.roofline.table", "pie", "figures.roofline.table is 'pie'; allowed: accumulation, all_reduce, "),
        ("figures.roofline.alt", 3, "figures.roofline.alt is 3; allowed: a valid string"),
        (
            "figures.flash",
            CONTENTS["figures"]["roofline"],
            "a figure is named 'flash'; allowed: any name but an experiment's, as both name targets",
        ),
        ("figures.pie", {"script": "flash"}, "figures.pie.category is missing"),
        ("figures.roofline.table", "", "roofline has no source; allowed: one of table, trace"),
        ("figures.roofline.trace", "training_step", "roofline has table and trace; allowed: one of table, "),
        ("figures.roofline.second_table", "pie", "roofline.second_table is 'pie'; allowed: accumulation, all_reduce, "),
        ("figures.kernel_timeline.second_table", "flash", "kernel_timeline has second_table without table"),
        ("figures.kernel_timeline.trace", "pie", "kernel_timeline.trace is 'pie'; allowed: training_step"),
        ("pictures", {}, "unknown key 'pictures' in the top level; allowed: parts, figures"),
        ("parts", ["flash_forward"], r"parts is \['flash_forward'\]; allowed: a valid dictionary"),
        ("parts.More", ["pie"], "a section is 'pie'; allowed: .*benchmarking_mixed_precision, "),
        ("parts.More", ["flash_forward"], "the section 'flash_forward' is listed twice"),
        ("parts.Attention", "flash_forward", "parts.Attention is 'flash_forward'; allowed: a valid list"),
    ],
)
def test_a_mistake_ends_in_a_sentence(tmp_path, keys, value, sentence):
    doctored = copy.deepcopy(CONTENTS)
    place = doctored
    *outer, last = keys.split(".")
    for key in outer:
        place = place[key]
    place[last] = value
    shutil.copytree(ROOT / "report" / "sections", tmp_path / "sections")
    path = tmp_path / "contents.yaml"
    path.write_text(yaml.safe_dump(doctored, sort_keys=False))
    with pytest.raises(ValueError, match=sentence) as error:
        read_contents(path)
    assert "\n" not in str(error.value)


def test_a_section_without_its_template_is_told(tmp_path):
    (tmp_path / "sections").mkdir()
    (tmp_path / "contents.yaml").write_text(yaml.safe_dump(CONTENTS, sort_keys=False))
    with pytest.raises(ValueError, match=r"'benchmarking_script', but there is no .*benchmarking_script\.typ\.j2"):
        read_contents(tmp_path / "contents.yaml")
