"""Make the report as one page that works offline: the Typst source of the PDF as HTML, its figures, and all rows."""

import base64
import gzip
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from cs336_systems.plan import read_plan
from scripts.rendering.rows import rows_json
from scripts.stages.typeset import compiled
from scripts.tools.log import log_to

FOLDER = Path("report/web")
PROJECT = Path("pyproject.toml")
"""Lists the addresses to which the page links."""
THEME = "/report/web/theme.typ"
"""The theme that the source imports in place of report/theme.typ."""


@dataclass(frozen=True)
class Heading:
    """A heading of the report, for the table of contents."""

    level: int
    """1 for a part, 2 for a section."""
    anchor: str
    """The id of its element."""
    content: Markup
    """Its text with its markup."""


def typeset(source: Path) -> tuple[str, Markup, Markup]:
    """The title, the style and the body that Typst makes from the report's source.

    Raises:
        RuntimeError: Typst's diagnosis, with line numbers of the source file.
    """
    html = compiled(source, format="html", sys_inputs={"theme": THEME})
    parts = re.fullmatch(
        r".*<title>(.*?)</title>.*?(?:<style>(.*?)</style>.*?)?<body>(.*)</body></html>", html.decode(), re.DOTALL
    )
    assert parts, "Typst writes its pages differently"
    title, style, body = map(Markup, parts.groups(default=""))  # no style if there is no formula
    return title.unescape(), style, body


def with_anchors(body: str) -> tuple[Markup, list[Heading]]:
    """The body with an id in each heading of a part or a section, and these headings."""
    headings: list[Heading] = []

    def anchored(heading: re.Match[str]) -> str:
        tag, attributes, content = heading.groups()
        known = re.search(r'id="([^"]*)"', attributes)
        title, _, problem = content.partition("<small>")
        words = re.findall(r"\w+", re.sub(r"<.*?>", "", problem) or re.sub(r"^[\d.]+ |<.*?>", "", title).lower())
        anchor = known[1] if known else "sec-" + "-".join(words)
        headings.append(Heading(int(tag) - 1, anchor, Markup(re.sub("</?a.*?>", "", title).strip())))
        link = f'<a class="anchor" href="#{anchor}" aria-label="Link to this section"></a>'
        named = attributes if known else f'{attributes} id="{anchor}"'
        return f"<h{tag}{named}>{content} {link}</h{tag}>"

    return Markup(re.sub(r"<h([23])([^>]*)>(.*?)</h\1>", anchored, body, flags=re.DOTALL)), headings


def with_sizes(body: str, figures: Mapping[str, str]) -> str:
    """The body with each picture's width and height, so that the page does not shift when it is drawn."""

    def sized(image: re.Match[str]) -> str:
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', figures[image[1]])
        width, height = (round(float(side)) for side in box.groups()) if box else (0, 0)
        return f'{image[0]} width="{width}" height="{height}"'

    return re.sub(r'<img data-figure="([^"]*)"', sized, body)


def packed(text: str) -> str:
    """A text compressed, in characters without meaning in HTML; the same text gives the same characters."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def links_of(project: Path) -> dict[str, str]:
    """Links of the page's bar: the PDF, and the addresses that a pyproject.toml has under `urls`, if any."""
    urls = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("urls", {})
    return {"PDF": "writeup.pdf", **urls}


def page(source: Path, figures: Mapping[str, str], rows: str, charts: str) -> str:
    """The page, from SVG texts of figures by name, the result of `rows_json`, and the script that draws charts."""
    title, style, body = typeset(source)
    content, headings = with_anchors(with_sizes(body, figures))
    tables = Path(str(distribution("itables").locate_file("itables/html")))  # not imported, since that imports pandas
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return jinja.get_template("page.html.j2").render(
        title=title,
        headings=headings,
        content=content,
        links=links_of(PROJECT),
        styles=[style, *(Markup(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.css")))],
        scripts=[Markup(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.js"))],
        data={
            "rows": packed(rows),
            "figures": packed(json.dumps(figures)),
            "charts": packed(charts),
            "tables": packed((tables / "dt_bundle.js").read_text(encoding="utf-8")),
            "tables-style": packed((tables / "dt_bundle.css").read_text(encoding="utf-8")),
        },
    )


def write(
    source: str,
    figures: Sequence[str],
    plan: str,
    tables: Mapping[str, str],
    reference: Mapping[str, Sequence[str]],
    charts: str,
    output: str,
) -> None:
    """Write the page of the report's source, the figures and the tables at the given paths."""
    rows = rows_json(
        read_plan(Path(plan)),
        {name: Path(path) for name, path in tables.items()},
        {name: [Path(path) for path in paths] for name, paths in reference.items()},
    )
    drawn = {Path(path).stem: Path(path).read_text(encoding="utf-8") for path in figures}
    text = page(Path(source), drawn, rows, Path(charts).read_text(encoding="utf-8"))
    Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        by_experiment: dict[str, list[str]] = {}
        for csv in snakemake.input.reference:
            by_experiment.setdefault(Path(csv).parent.name, []).append(csv)
        write(
            source=snakemake.input.source,
            figures=snakemake.input.figures,
            plan=snakemake.input.plan,
            tables={name: snakemake.input[name] for name in snakemake.params.experiments},
            reference=by_experiment,
            charts=snakemake.input.charts,
            output=snakemake.output[0],
        )
