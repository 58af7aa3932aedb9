"""Mistakes in YAML files are reported with line and column."""

import re

import pytest
import yaml

from cs336_systems.yaml_file import read_mapping, read_yaml
from tests.samples import ROOT

BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(10 * ['*' + before])}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\nb: [2\n", "x.yaml, line 3, column 1: did not find expected ',' or ']'"),
        ("a:\n\tb: 1\n", "x.yaml, line 2, column 1: found"),
        ("a: 1\nb:\n  c: 2\n  c: 3\n", "x.yaml, line 4, column 3: the key 'c' already occurs in line 3"),
        ("a: *b\n", "x.yaml, line 1, column 4: found undefined alias"),
        ("a: &a {b: *a}\n", "x.yaml, line 1, column 4: a recursive alias"),
        (BOMB, "x.yaml: its aliases expand to 1"),
        ("? {a: 1}\n: 2\n", "x.yaml, line 1, column 3: found unhashable key"),
        ("a: \0\n", "x.yaml: unacceptable character #x0000"),
        ("a: 1\nb: 2026-13-45\n", "x.yaml, line 2, column 4: '2026-13-45' is not a valid timestamp"),
        ("a: !!timestamp x\n", "x.yaml, line 1, column 4: 'x' is not a valid timestamp"),
        ("a: !!bool x\n", "x.yaml, line 1, column 4: 'x' is not a valid bool"),
        (f"a: {'9' * 5000}\n", f"x.yaml, line 1, column 4: '{'9' * 40}' is not a valid int"),
        ("a: 1\n---\nb: 2\n", "x.yaml, line 2, column 1: a second document; allowed: one"),
        (f"a: {'[' * 900}{']' * 900}\n", "x.yaml, line 1, column 104: nested deeper than 100 levels"),
        (f"a: {'[' * 5000}{']' * 5000}\n", "exceeded maximum nesting depth"),
    ],
)
def test_a_mistake_is_answered_in_a_sentence(tmp_path, text, complaint):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(complaint)) as error:
        read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(error.value)


def test_a_sound_file_is_what_yaml_says(tmp_path):
    config = ROOT / "config.yaml"
    assert read_yaml(config) == yaml.safe_load(config.read_text())
    (tmp_path / "x.yaml").write_text("﻿a: &b [1]\nc: *b\nd: {<<: {e: 1}, f: 2}\n", encoding="utf-8")
    assert read_yaml(tmp_path / "x.yaml") == {"a": [1], "c": [1], "d": {"e": 1, "f": 2}}
    (tmp_path / "x.yaml").write_text("")
    assert read_yaml(tmp_path / "x.yaml") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "x.yaml: it has nothing; allowed: keys with their values"),
        ("# only a comment\n", "x.yaml: it has nothing; allowed"),
        ("- scale: smoke\n", "x.yaml: it has a list; allowed: keys with their values"),
        ("smoke\n", "x.yaml: it has 'smoke'; allowed: keys with their values"),
        (None, "x.yaml: No such file or directory"),
    ],
)
def test_a_configuration_has_keys(tmp_path, text, complaint):
    if text is not None:
        (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        read_mapping(tmp_path / "x.yaml")
