"""A short Typst source as a page of the web edition that works offline, without contents and explorer."""

from pathlib import Path

import jinja2
from markupsafe import Markup

from scripts.web import typeset

REPORT = Path("report")


def write_page(source: Path, output: Path, *, text_columns: int = 2) -> None:
    """Write the page of a source; columns of tables after the first `text_columns` are aligned right."""
    title, style, content = typeset(source)
    loader = jinja2.FileSystemLoader(REPORT)
    jinja = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    styles = [style, Markup((REPORT / "web/style.css").read_text(encoding="utf-8"))]
    page = jinja.get_template("short_page.html.j2").render(
        title=title, styles=styles, content=content, text_columns=text_columns
    )
    output.write_text(page, encoding="utf-8")
