"""The source digest: what changes it and what does not."""

import pytest

from cs336_systems.measure.source import source_digest

FILES = {
    "__init__": "",
    "top": """
'''Doc.'''
from digested.middle import value


def f(x):
    '''Doc.'''
    return f"{x!r:>{value}}"
""",
    "middle": "from digested import bottom\n\nvalue = bottom.value\n",
    "bottom": "value = 3\n",
    "unrelated": "value = 4\n",
}


@pytest.fixture
def edit(tmp_path, monkeypatch):
    (tmp_path / "digested").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    def write(**changes):
        for name, text in {**FILES, **changes}.items():
            (tmp_path / "digested" / f"{name}.py").write_text(text)
        return source_digest("digested.top")

    return write


def test_comments_docstrings_and_layout_do_not_count(edit):
    changed = FILES["top"].replace("Doc.", "Other words.").replace("    return", "\n    # why\n    return")
    assert edit(top=changed) == edit()


@pytest.mark.parametrize("module", ["top", "middle", "bottom"])
def test_code_counts_wherever_it_is_imported(edit, module):
    assert edit(**{module: FILES[module] + "\nextra = 1\n"}) != edit()


def test_modules_that_are_not_imported_do_not_count(edit):
    assert edit(unrelated="value = 5\n") == edit()


def test_a_string_that_is_used_counts(edit):
    assert edit(bottom='value = "a"\n') != edit(bottom='value = "b"\n')


def test_an_unknown_module_is_named(edit):
    edit()
    with pytest.raises(ValueError, match=r"'digested\.missing'"):
        source_digest("digested.missing")
