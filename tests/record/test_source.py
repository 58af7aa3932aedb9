"""The source digest: what changes it and what does not."""

import pytest

from cs336_systems.record.source import source_digest

FILES = {
    "__init__": "",
    "top": """
'''Doc.'''
from digested.middle import value
from . import sibling
from .package import inner


def f(x):
    '''Doc.'''
    return f"{x!r:>{value}}"
""",
    "middle": "from digested import bottom\n\nvalue = bottom.value\n",
    "bottom": "value = 3\n",
    "sibling": "value = 5\n",
    "package/__init__": "",
    "package/inner": "from ..uncle import value\nfrom . import cousin\n",
    "package/cousin": "value = 6\n",
    "uncle": "value = 7\n",
    "unrelated": "value = 4\n",
}


@pytest.fixture
def edit(tmp_path, monkeypatch):
    (tmp_path / "digested" / "package").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)

    def write(**changes):
        for name, text in {**FILES, **changes}.items():
            (tmp_path / "digested" / f"{name}.py").write_text(text)
        return source_digest("digested.top")

    return write


def test_comments_docstrings_and_layout_do_not_count(edit):
    changed = FILES["top"].replace("Doc.", "Other words.").replace("    return", "\n    # why\n    return")
    assert edit(top=changed) == edit()


IMPORTED = ["top", "middle", "bottom", "sibling", "package/__init__", "package/inner", "package/cousin", "uncle"]


@pytest.mark.parametrize("module", IMPORTED)
def test_code_counts_wherever_it_is_imported(edit, module):
    assert edit(**{module: FILES[module] + "\nextra = 1\n"}) != edit()


MAIN = "\nif __name__ == '__main__':\n    from digested import unrelated\n    print({})\n"


def test_what_a_module_does_as_a_program_does_not_count(edit):
    plain = edit()
    assert edit(top=FILES["top"] + MAIN.format(1)) == plain
    assert edit(top=FILES["top"] + MAIN.format(2), unrelated="value = 5\n") == plain
    assert edit(top=FILES["top"] + "\nif value:\n    print(1)\n") != plain


def test_what_a_package_loads_on_first_use_counts(edit):
    """By its imports for type checkers."""
    lazy = {"package/__init__": "if TYPE_CHECKING:\n    from digested.unrelated import value as value\n"}
    plain = edit(top="from digested.package import value", **lazy)
    assert edit(top="from digested.package import value", **lazy, unrelated="value = 5\n") != plain


def test_the_version_does_not_count(edit):
    assert edit(**{"__init__": '__version__ = "1"\n'}) == edit(**{"__init__": '__version__ = "2"\n'}) == edit()


def test_modules_that_are_not_imported_do_not_count(edit):
    assert edit(unrelated="value = 5\n") == edit()


def test_a_string_that_is_used_counts(edit):
    assert edit(bottom='value = "a"\n') != edit(bottom='value = "b"\n')


def test_an_unknown_module_is_named(edit):
    edit()
    with pytest.raises(ValueError, match=r"'digested\.missing'"):
        source_digest("digested.missing")


@pytest.mark.parametrize("text", ["def f(:\n", "from ... import x\n"])
def test_what_is_no_module_is_named(edit, text):
    with pytest.raises(ValueError, match=r"digested/bottom\.py: "):
        edit(bottom=text)
