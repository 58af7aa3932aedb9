"""The list of what the report holds: every mistake ends in one sentence."""

import copy
import shutil

import pytest
import yaml

from scripts.rendering.contents import read_contents
from tests.samples import ROOT, mistakes

CONTENTS = yaml.safe_load((ROOT / "report" / "contents.yaml").read_text())


@pytest.mark.parametrize(("keys", "value", "sentence"), mistakes("contents"))
def test_a_mistake_ends_in_a_sentence(tmp_path, keys, value, sentence):
    doctored = copy.deepcopy(CONTENTS)
    place = doctored
    *outer, last = keys.split(".")
    for key in outer:
        place = place[key]
    place[last] = CONTENTS["figures"]["roofline"] if value == "roofline" else value
    shutil.copytree(ROOT / "report" / "sections", tmp_path / "sections")
    path = tmp_path / "contents.yaml"
    path.write_text(yaml.safe_dump(doctored, sort_keys=False))
    with pytest.raises(ValueError, match=sentence) as error:
        read_contents(path)
    assert "\n" not in str(error.value)


def test_a_section_without_its_template_is_reported(tmp_path):
    (tmp_path / "sections").mkdir()
    (tmp_path / "contents.yaml").write_text(yaml.safe_dump(CONTENTS, sort_keys=False))
    with pytest.raises(ValueError, match=r"'benchmarking_script' has no template .*benchmarking_script\.typ\.j2"):
        read_contents(tmp_path / "contents.yaml")
