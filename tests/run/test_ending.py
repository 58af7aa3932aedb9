"""The last lines of a run that has made the report."""

import pytest

from cs336_systems.run.ending import ending, findings
from tests.samples import ROOT


@pytest.mark.parametrize("name", ["h200", "laptop", "sparse"])
def test_every_report_has_three_findings(name):
    texts = findings((ROOT / f"tests/golden/{name}-report.typ").read_text())
    assert len(texts) == 3
    for text in texts:
        assert any(letter.isdigit() for letter in text)
        assert not set(text) & set('#"[]~`')


def test_the_report_the_page_and_the_next_command_are_named(tmp_path):
    source = 'tile([2.00×], [bf16 over #"fp32";]),\nfinding("a-b", [#"Title";], [An answer of 3 ms.]),\n'
    (tmp_path / "writeup.typ").write_text(source)
    (tmp_path / "verdict.txt").write_text("The report is x.pdf (3 of 3 self-checks passed)\n")
    (tmp_path / "coverage.csv").write_text("experiment,unplanned\nflash,2\nfsdp,1\n")
    (tmp_path / "report.html").touch()
    assert list(ending(tmp_path, "recorded")) == [
        "The report is x.pdf (3 of 3 self-checks passed)",
        "Measured cells left out because this configuration does not plan them: 3. To include them, "
        "repeat the --config or --configfile with which they were measured.",
        f"The page with all rows to explore is {tmp_path}/report.html",
        "- 2.00× bf16 over fp32",
        "- An answer of 3 ms.",
        "`make` measures this machine.",
    ]
