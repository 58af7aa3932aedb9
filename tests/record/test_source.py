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


OTHER_WORDS = FILES["top"].replace("Doc.", "Other words.").replace("    return", "\n    # why\n    return")
MAIN = "\nif __name__ == '__main__':\n    from digested import unrelated\n    print(1)\n"
LAZY = {
    "top": "from digested.package import value",
    "package/__init__": "if TYPE_CHECKING:\n    from digested.unrelated import value as value\n",
}
"""A package that loads a module on first use."""
IMPORTED = ["top", "middle", "bottom", "sibling", "package/__init__", "package/inner", "package/cousin", "uncle"]
UNRELATED = {"unrelated": "value = 5\n"}


@pytest.mark.parametrize(
    "changes",
    [
        {"top": OTHER_WORDS},
        {"__init__": '__version__ = "1"\n'},
        UNRELATED,
        {"top": FILES["top"] + MAIN},
        {"top": FILES["top"] + MAIN} | UNRELATED,
    ],
)
def test_words_the_version_and_what_is_not_imported_do_not_count(edit, changes):
    assert edit(**changes) == edit()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(({}, {module: FILES[module] + "\nextra = 1\n"}) for module in IMPORTED),
        ({}, {"top": FILES["top"] + "\nif value:\n    print(1)\n"}),
        (LAZY, LAZY | UNRELATED),
        ({"bottom": 'value = "a"\n'}, {"bottom": 'value = "b"\n'}),
    ],
)
def test_code_counts_wherever_it_is_imported(edit, before, after):
    assert edit(**before) != edit(**after)


def test_an_unknown_module_is_named(edit):
    edit()
    with pytest.raises(ValueError, match=r"'digested\.missing'"):
        source_digest("digested.missing")


@pytest.mark.parametrize("text", ["def f(:\n", "from ... import x\n", f"x = {'+'.join('1' * 20_000)}\n"])
def test_what_is_no_module_is_named(edit, text):
    with pytest.raises(ValueError, match=r"digested/bottom\.py: "):
        edit(bottom=text)
