"""The report of `python -m cs336_systems.attention` on this machine's kernels."""

import sys

import pytest

from cs336_systems.attention.__main__ import main


def test_each_kind_of_kernel_is_named_and_right(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attention", "--test"])
    with pytest.raises(SystemExit) as status:
        main()
    assert not status.value.code
    lines = capsys.readouterr().out.splitlines()
    kinds = [line for line in lines if "d = " in line]
    assert "torch 2." in lines[0]
    assert len(kinds) == 18
    assert all("; right: error" in line for line in kinds)
