"""A short Typst source as an offline page of the web edition, without contents and explorer."""

from pathlib import Path

import jinja2
from markupsafe import Markup

from scripts.stages import web
from scripts.stages.typeset import typeset

REPORT = Path("report")


def write_pages(text: str, folder: Path, name: str, *, text_columns: int = 2) -> None:
    """Write a Typst source into a folder, as a PDF and as a page of the web edition."""
    source = folder / f"{name}.typ"
    source.write_text(text, encoding="utf-8")
    typeset(source, folder / f"{name}.pdf")
    write_page(source, folder / f"{name}.html", text_columns=text_columns)


def inline(picture: Path) -> str:
    """A figure's SVG for a source, since Typst cannot read files outside the project's folder, where results may be."""
    return picture.read_text(encoding="utf-8").replace("\n", " ")


def write_page(source: Path, output: Path, *, text_columns: int) -> None:
    """Write the page of a source; columns of tables after the first `text_columns` are aligned right."""
    title, style, content = web.typeset(source)
    loader = jinja2.FileSystemLoader(REPORT)
    jinja = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    styles = [style, Markup((REPORT / "web/style.css").read_text(encoding="utf-8"))]
    page = jinja.get_template("short_page.html.j2").render(
        title=title, styles=styles, content=content, text_columns=text_columns
    )
    output.write_text(page, encoding="utf-8")
