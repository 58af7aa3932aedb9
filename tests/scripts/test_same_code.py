"""Code that differs by renames alone is the same; any other difference, however small, is refused."""

import re

import pytest

from cs336_systems.record.digests import latest, read_later
from cs336_systems.record.source import find_sources
from scripts.same_code import require_same_sources, write
from scripts.syntax_trees import Renames

OLD = {
    "top": """
from digested import lane
from digested.lane import Lane
from digested.other import Base

class Top(Base):
    def gather(self, lane: Lane, count=1.5, *, last=False):
        self._lane = lane
        return [f"peer memory, {lane.start(beside=count)}", "peer_memory", self.base]
""",
    "lane": "class Lane:\n    def start(self, beside):\n        return beside\n",
    "other": "import math\nimport os as system\n\nclass Base:\n    base = math.floor(2.5) if system else 0\n",
    "__init__": "'''A package.'''",
}
RENAMES = Renames(
    modules={"digested.streams.stream": "digested.lane"},
    names={"Stream": "Lane", "_stream": "_lane", "stream": "lane", "spare": "beside", "symmetric": "peer_memory"},
    strings={"symmetric memory": "peer memory"},
)
NEW = {
    # Imports are sorted by their new names.
    "top": """
from digested.other import Base
from digested.streams import stream
from digested.streams.stream import Stream

class Top(Base):
    def gather(self, stream: Stream, count=1.5, *, last=False):
        '''Gather.'''
        self._stream = stream
        return [f"symmetric memory, {stream.start(spare=count)}", "symmetric", self.base]
""",
    "streams/stream": "class Stream:\n    def start(self, spare):\n        return spare  # why\n",
    "streams/__init__": "'''A new package.'''",
    "other": OLD["other"],
    "__init__": "'''A package.'''",
}


def sources(folder, files):
    for name, text in files.items():
        path = folder / "digested" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return find_sources(["digested.top"], [], [str(folder)])


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return sources(tmp_path_factory.mktemp("old"), OLD)


def test_renames_of_all_kinds_leave_code_the_same(old, tmp_path):
    require_same_sources(old, sources(tmp_path, NEW), RENAMES)
    require_same_sources(old, old, Renames())


MORE_THAN_NAMES = {
    "a number": ("top", "1.5", "1.25", r"digested.top: .*count=1\.5.* has become, .*count=1\.25"),
    "a number of another type": ("top", "last=False", "last=0", "last=False.* has become, .*last=0"),
    "an operator": ("other", "if system else 0", "if not system else 0", "has become, .* not system"),
    "a statement": ("top", "        return", "        self.count = count\n        return", "has become"),
    "a default": ("top", "count=1.5", "count", "has become"),
    "a word of a string": ("top", "symmetric memory,", "symmetric memories,", "has become"),
    "an import's alias": ("other", "import os as system", "import sys as system", "import os"),
    "an import from elsewhere": (
        "top",
        "streams.stream import",
        "other import",
        "digested.lane import Lane has",
    ),
    "a module": ("top", "\nclass", "\nimport digested.more\n\nclass", "only one of the versions has digested.more"),
    "a name that no rename lists": ("other", "base", "bases", "base = .* has become, .*bases = "),
    "a name in one of its places": ("top", "_stream = stream", "_stream = lane", "'lane' has become .* and "),
    "two names for one": ("top", "Stream, count=1.5", "Stream, stream=1.5", "count=1.5.* has become, .*lane=1.5"),
    "an argument of another module": ("top", "spare=", "beside=", "'beside' has become 'beside' and 'spare'"),
}


@pytest.mark.parametrize("change", MORE_THAN_NAMES)
def test_anything_more_is_refused(old, tmp_path, change):
    module, text, instead, sentence = MORE_THAN_NAMES[change]
    assert text in NEW[module]
    more = {"more": "value = 1\n"}
    new = sources(tmp_path, NEW | more | {module: NEW[module].replace(text, instead, 1)})
    with pytest.raises(ValueError, match=sentence):
        require_same_sources(old, new, RENAMES)


def test_two_names_never_become_one(tmp_path):
    """A value assigned to one of them would be read by the other."""
    old = sources(tmp_path / "old", OLD | {"other": "class Base:\n    first, both = 1, 2\n    base = first\n"})
    new = sources(tmp_path / "new", NEW | {"other": "class Base:\n    both, both = 1, 2\n    base = both\n"})
    with pytest.raises(ValueError, match=r"first, both = .* has become, with old names, first, first = "):
        require_same_sources(old, new, Renames(RENAMES.modules, {**RENAMES.names, "both": "first"}, RENAMES.strings))


def test_a_row_is_followed_through_several_renames(tmp_path):
    file = tmp_path / "same_code.csv"
    write(file, [("a/b", "1", "2", "first"), ("a/c", "9", "9", "first")])
    write(file, [("a/b", "2", "3", "second")])
    write(file, [("a/b", "1", "2", "first")])
    later = read_later([file])
    assert later == {"1": "2", "2": "3"}
    assert [latest(digest, later) for digest in "1239"] == ["3", "3", "3", "9"]
    assert latest("x", {"x": "y", "y": "x"}) in "xy", "renamed and back: no endless loop"
    assert re.fullmatch(r"job,.*\n.*first\n.*second\n", file.read_text())
