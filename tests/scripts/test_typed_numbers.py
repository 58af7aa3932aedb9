"""No number is typed into the report's text but those that given_numbers.yaml lists, template by template, in order.

Not text are expressions and tests of Jinja, formulas, raw text, strings, labels and lengths; a word that begins with a
letter, such as bf16 or H100, is a name.
"""

import re

import pytest
import yaml
from jinja2 import nodes

from scripts.rendering.contents import read_contents
from scripts.writeup import environment
from tests.samples import ROOT

REPORT = ROOT / "report"
TEMPLATES = sorted(path.relative_to(REPORT).as_posix() for path in REPORT.rglob("*.typ.j2"))
GIVEN = yaml.safe_load((ROOT / "tests" / "given_numbers.yaml").read_text(encoding="utf-8"))
NO_TEXT = r'\$[^$]*\$|`[^`]*`|"[^"]*"|@[\w-]+|<[a-z][\w-]*>|\b[\d.]+(?:pt|cm|em|fr)\b'
NAME = r"[A-Za-z]\w*"


def typed_numbers(source: str) -> list[str]:
    """The numbers in a template's text, and those that an expression prints as they stand."""
    tree = environment(REPORT).parse(source)
    printed = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    text = " ".join(node.data for node in printed if isinstance(node, nodes.TemplateData))
    constants = (constant for node in printed for constant in literals(node))
    return numbers(text) + [number for constant in constants for number in numbers(str(constant))]


def literals(node: nodes.Node) -> list[object]:
    """What an expression prints that stands in it: not what it computes with, looks up or passes on."""
    if isinstance(node, nodes.Const):
        return [node.value]
    inside: list[nodes.Node | None] = []
    if isinstance(node, nodes.Filter):
        inside = [node.node]
    elif isinstance(node, nodes.CondExpr):
        inside = [node.expr1, node.expr2]
    elif isinstance(node, nodes.Concat):
        inside = list(node.nodes)
    return [value for part in inside if part for value in literals(part)]


def numbers(text: str) -> list[str]:
    """The numbers in a text."""
    return re.findall(r"\d[\d.]*(?<!\.)", re.sub(NAME, "", re.sub(NO_TEXT, "", text)))


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_has_the_given_numbers_only(template):
    typed = typed_numbers((REPORT / template).read_text(encoding="utf-8"))
    assert typed == str(GIVEN.get(template, "")).split()


def test_so_have_the_captions():
    figures = read_contents(REPORT / "contents.yaml").figures.values()
    typed = [number for figure in figures for text in (figure.caption, figure.alt) for number in numbers(text)]
    assert typed == str(GIVEN["contents.yaml"]).split()


def test_the_list_names_templates_that_there_are():
    assert {*GIVEN} <= {*TEMPLATES, "contents.yaml"}


@pytest.mark.parametrize(
    ("source", "typed"),
    [
        ("It takes 3.5 ms.", ["3.5"]),
        ("<< 3.5|ms >>", ["3.5"]),
        ('<< "1.9×" if a.best else a.gain|times >>', ["1.9"]),
        ("It is 12\N{NO-BREAK SPACE}% in bf16 on the H100 @kim2024, ${n^2}$, `x[0]`, 8pt <tab-2>", ["12"]),
        ("<% if a.share > 0.9 %><< (a.size / 1e9)|sig(2) >> of << a.best[0]|ms >><% endif %>", []),
    ],
)
def test_what_counts_as_typed(source, typed):
    assert typed_numbers(source) == typed
