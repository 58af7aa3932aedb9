"""README and the documentation site: the examples run, on CPUs and on GPUs."""

import csv
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.samples import ROOT
from tests.support.ranks import launch

NAMES = """
import torch
if on_gpu:
    torch.cuda.set_device(rank)
    torch.set_default_device("cuda")
else:
    torch.compiler.set_stance("force_eager")  # the compiler computes the same, and takes seconds
backend = "nccl" if on_gpu else "gloo"
torch.distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
q = k = v = torch.randn(2, 4, 8, 16)
from cs336_systems.attention import flash_attention
from cs336_systems.model import TransformerLM
shape = dict(vocab_size=11, context_length=6, d_model=8, num_layers=1, num_heads=2, d_ff=12, rope_theta=1e4)
batches = torch.randint(11, (2, 2, 3, 6))
def fresh():
    model, loss = torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy
    inputs, targets = torch.randn(5, 4), torch.randint(3, (5,))
    return model, loss, inputs, targets, torch.optim.AdamW(model.parameters())
"""
"""Definitions that the examples assume."""
STEP = """
loss(model(inputs).float(), targets).backward()
model.finish_gradient_synchronization()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("on_gpu", "ranks"), [(False, 2), *(pytest.param(True, number, marks=pytest.mark.gpu) for number in (1, 2))]
)
def test_the_examples_run(tmp_path, on_gpu, ranks):
    if on_gpu and torch.cuda.device_count() < ranks:
        pytest.skip(f"{ranks} GPUs are needed")
    code = NAMES
    for page in ("README.md", "docs/library.md", "docs/training.md", "docs/what-fits.md"):
        examples = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        assert examples
        for example in examples:
            code += f"model, loss, inputs, targets, optimizer = fresh()\n{example}"
            code += STEP if "model = " in example and not re.search(r"backward\(\)|CapturedStep", example) else ""
    (tmp_path / "examples.py").write_text(code, encoding="utf-8")
    launch(run, str(tmp_path / "examples.py"), {"on_gpu": on_gpu, "ranks": ranks}, processes=ranks)


def run(rank, examples, names):
    os.chdir(ROOT)
    runpy.run_path(examples, init_globals={"rank": rank, "folder": str(Path(examples).parent), **names})


@pytest.mark.slow
def test_headlines_measure_every_contender():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--size", "tiny", "--rounds", "1", "--steps", "2"]
    command = [*launcher, "examples/headlines.py", *options]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert {row["part"] for row in rows} == {"bf16", "sharded", "fp32"}
    missing = [row["contender"] for row in rows if not row["median_ms"]]
    assert missing == ["fully_shard, symmetric memory"], "which needs GPUs"
    for row in rows:
        if row["contender"] != missing[0]:
            assert row["n"] == "2"
            assert float(row["p20_ms"]) <= float(row["median_ms"]) <= float(row["p80_ms"])


PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_the_same_on_github_as_on_the_site(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|<!--.*?-->|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert not re.findall(r"^(?:!!!|:::|--8<--).*|\{(?:width|#|\.|:).*?\}", prose, re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http", "mailto", "../../")):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page} links to {target}"
        if page.startswith("docs/"):
            assert file.resolve().is_relative_to(ROOT / "docs"), f"{target} is not on the site"


def test_every_page_of_the_documentation_is_in_its_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    assert sorted(re.findall(r"[\w-]+\.md", navigation)) == [page.removeprefix("docs/") for page in PAGES[1:]]
