"""What `python -m cs336_systems.attention` says of this machine."""

import subprocess
import sys


def test_each_kind_of_kernel_is_named_and_right():
    command = [sys.executable, "-m", "cs336_systems.attention", "--test"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    kinds = [line for line in lines if "d = " in line]
    assert "torch 2." in lines[0]
    assert len(kinds) == 18
    assert all("; right: error" in line for line in kinds)
