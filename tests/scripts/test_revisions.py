"""The lock of revisions: up to date, and changed by code, but not by words."""

import pytest

from cs336_systems.record.revisions import Unit, read_lock
from scripts.revisions import __main__ as revisions
from scripts.revisions import measured_code
from scripts.revisions.__main__ import changed, explanation, present_units, revise, write
from scripts.revisions.measured_code import ALL, Place, digest, reach

ROOT = Place("cs336_systems.top", "measure")
FILES = {
    "top": '''
"""Doc."""
from typing import Literal

from cs336_systems.middle import Timer, unused
from cs336_systems import constants


def measure(cell: "str", device: int) -> list[int]:
    """Doc."""
    title: Literal["a"] = "A title."
    if device < 0:
        raise ValueError(f"device is {device}; allowed: more")
    return Timer(constants.WARMUP).time(cell)
''',
    "middle": '''
from cs336_systems.elsewhere import helper


class Timer:
    """Doc."""

    def time(self, cell):
        from cs336_systems.late import last

        return helper(cell) + last()


def unused():
    return 1
''',
    "constants": "WARMUP = 3\n",
    "elsewhere": "FACTOR = 2\n\n\ndef helper(x):\n    return FACTOR * x\n\n\nprint('acts on import')\n",
    "late": "def last():\n    return 5\n",
    "__init__": "",
}


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """The digest of a package of the project's name, some of whose files have other texts, or a text replaced."""
    monkeypatch.setattr(measured_code, "ROOT", tmp_path)
    (tmp_path / "cs336_systems").mkdir()

    def make(root=ROOT, **changes):
        for cached in (measured_code._file, measured_code.read_module):
            cached.cache_clear()
        for name, change in (dict.fromkeys(FILES, ("", "")) | changes).items():
            text = change if isinstance(change, str) else FILES[name].replace(*change)
            assert text != FILES.get(name) or change == ("", "")
            (tmp_path / "cs336_systems" / f"{name}.py").write_text(text)
        return digest(reach([root])[0])

    yield make
    for cached in (measured_code._file, measured_code.read_module):
        cached.cache_clear()


def test_the_lock_is_that_of_the_code():
    sentence = explanation(changed(read_lock(), present_units(read_lock())))
    assert not sentence, sentence


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("top", "device is {device}; allowed: more", "{device} is less than 0"),
        ("top", "A title.", "Another title."),
        ("top", '"""Doc."""', '"""Other words, and more."""'),
        ("top", 'cell: "str", device: int) -> list[int]', "cell, device) -> object"),
        ("top", 'Literal["a"]', "str"),
        ("middle", "return 1", "return 2"),
    ],
)
def test_words_annotations_and_what_is_not_run_do_not_count(digest_of, module, old, new):
    assert digest_of(**{module: (old, new)}) == digest_of()


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("top", "device < 0", "device < 1"),
        ("middle", "+ last()", "- last()"),
        ("constants", "WARMUP = 3", "WARMUP = 4"),
        ("elsewhere", "FACTOR = 2", "FACTOR = 3"),
        ("elsewhere", "print('acts on import')", "print('acts on import', 2)"),
        ("late", "return 5", "return 6"),
    ],
)
def test_code_counts_wherever_it_is_reached(digest_of, module, old, new):
    assert digest_of(**{module: (old, new)}) != digest_of()


def test_where_code_stands_does_not_count(digest_of):
    moved = digest_of(top=("cs336_systems.middle", "cs336_systems.clock"), clock=FILES["middle"], middle="")
    assert moved == digest_of()
    assert digest_of(Place("cs336_systems.constants", ALL)) != moved


def test_what_does_not_exist_is_named(digest_of):
    with pytest.raises(ValueError, match=r"^cs336_systems\.top has no 'measures'$"):
        digest_of(Place("cs336_systems.top", "measures"))
    with pytest.raises(ValueError, match=r"^there is no module 'cs336_systems\.gone'$"):
        digest_of(late="from cs336_systems.gone import x\n\n\ndef last():\n    return x\n")
    with pytest.raises(ValueError, match=r"^measured code begins in torch; allowed: modules of cs336_systems$"):
        digest_of(Place("torch", "nn"))


def test_everything_that_is_measured_is_a_unit():
    units = present_units(read_lock())
    assert {"flash", "flash/triton", "data_parallel/ddp", "timing", "kernel_trace"} <= units.keys()
    assert {used for unit in units.values() for used in unit.uses} <= units.keys()
    assert all(unit.digest != digest([]) for unit in units.values())


def test_accept_keeps_a_revision_and_bump_raises_it(tmp_path, monkeypatch):
    monkeypatch.setattr(revisions, "LOCK", file := tmp_path / "revisions.yaml")
    units = present_units({})
    stale = Unit(3, (), "000000000000")
    write(units | {"flash": stale, "flash/triton": stale, "flash/gone": stale}, file)
    assert changed(read_lock(file), present_units(read_lock(file))) == ["flash", "flash/gone", "flash/triton"]
    assert revise("accept", ["flash"], file) == ["flash"]
    assert read_lock(file)["flash"] == units["flash"]._replace(revision=3)
    assert revise("bump", ["flash/t*n", "flash/gone"], file) == ["flash/gone", "flash/triton"]
    assert read_lock(file)["flash/triton"].revision == 4
    lock = read_lock(file)
    assert changed(lock, present_units(lock)) == []
    with pytest.raises(ValueError, match=r"^the unit is 'flahs'; allowed: runner, "):
        revise("accept", ["flahs"], file)


def test_the_sentence_says_what_to_do():
    assert explanation([]) == ""
    assert explanation(["flash", "timing"]) == (
        "the code of flash, timing differs from its revision in revisions.yaml: run `python -m scripts.revisions "
        "bump NAME ...` for code whose measurements may change, and `python -m scripts.revisions accept NAME ...` for"
        " the rest"
    )
