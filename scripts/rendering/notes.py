"""A user's own notes: notes/SECTION.md, a subset of Markdown with numbers by name, as Typst markup.

Paragraphs, lists (`- `), **bold**, *italic*, `code`, [links](https://...) and numbers: {EXPERIMENT METRIC KEY=VALUE}
must name one measured row. The rules list the files before anything runs: no pandas here.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.implementations import PARAMETER, label
from cs336_systems.record.rows import parameters
from scripts.rendering.contents import check_name
from scripts.rendering.markup import Typst, escape, significant, string, with_unit
from scripts.tools.log import Refused

FOLDER = Path("notes")
STATISTICS = ("median", "mean", "std", "p20", "p80")
"""After a metric and a dot; the first one if there is none."""
SPAN = re.compile(
    r"\*\*(?P<strong>.+?)\*\*|\*(?P<emph>.+?)\*|`(?P<code>[^`]+)`|\[(?P<text>[^\]]+)\]\((?P<url>https?://[^)\s]+)\)"
    r"|\{(?P<number>[^{}]*)\}"
)


def note_files(sections: Collection[str], folder: Path = FOLDER) -> list[str]:
    """The paths of all notes; hidden files, such as an editor's, are none.

    Raises:
        ValueError: one is named after no section, or is not a file; in one sentence.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; allowed: a folder of notes, SECTION.md")
    for path in (paths := sorted(folder.glob("[!.]*"))):
        if path.suffix != ".md" or path.stem not in sections:
            raise ValueError(f"{path} belongs to no section; allowed: SECTION.md, of {', '.join(sections)}")
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"{path} is a folder or a link; allowed: a text file")
    return list(map(str, paths))


def read_notes(sections: Collection[str], tables: Mapping[str, Any], folder: Path = FOLDER) -> dict[str, Typst]:
    """The notes as markup, by their section, with numbers from the tables.

    Raises:
        Refused: it is not in UTF-8, or a number names no row, or several, in one sentence.
    """
    notes = {}
    for path in map(Path, note_files(sections, folder)):
        try:
            notes[path.stem] = note(path.read_text(encoding="utf-8-sig"), lambda name: number(name, tables))
        except ValueError as error:
            raise Refused(f"{path}: {error}") from None
    return notes


def note(text: str, number: Callable[[str], Typst]) -> Typst:
    """Markdown as markup; `number` looks up the names in braces."""
    return Typst("\n\n".join(blocks(text, number)))


def blocks(text: str, number: Callable[[str], Typst]) -> Iterator[str]:
    """Each paragraph, or item of a list."""
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", text.strip()):
        item = paragraph.startswith("- ")
        words = inline(" ".join(paragraph.removeprefix("- ").split()), number)
        yield f"#list.item[{words}]" if item else words


def inline(text: str, number: Callable[[str], Typst]) -> str:
    """A line; everything except the marks of SPAN is literal."""
    parts, end = [], 0
    for match in SPAN.finditer(text):
        parts += [literal(text[end : match.start()]), marked(match, number)]
        end = match.end()
    return "".join([*parts, literal(text[end:])])


def literal(text: str) -> str:
    """Escaped text."""
    return escape(text) if text else ""


def marked(match: re.Match[str], number: Callable[[str], Typst]) -> str:
    """One mark of SPAN."""
    kind = str(match.lastgroup)
    if kind == "url":
        return f"#link({string(match['url'])})[{inline(match['text'], number)}]"
    if kind in ("strong", "emph"):
        return f"#{kind}[{inline(match[kind], number)}]"
    return f"#raw({string(match['code'])})" if kind == "code" else number(match["number"])


def number(name: str, tables: Mapping[str, Any]) -> Typst:
    """The number for a name, with its unit: the median, unless another statistic follows the metric."""
    experiment, metric, *wanted = [*name.split(), "", ""]
    metric, _, statistic = metric.partition(".")
    check_name(f"the experiment of {{{name}}}", experiment, tables)
    check_name(f"the statistic of {{{name}}}", statistic or STATISTICS[0], STATISTICS)
    statistic = statistic or STATISTICS[0]
    rows = tables[experiment].dropna(subset=statistic)
    if other := next((word for word in wanted if word and "=" not in word), ""):
        raise ValueError(f"{{{name}}} has {other!r} after the metric; allowed: KEY=VALUE")
    for key, value in [("metric", metric), *(pair.split("=", 1) for pair in wanted if pair)]:
        check_name(f"a key of {{{name}}}", key, rows)
        values = rows[key].map(str)
        values = values.map(label) if key == PARAMETER else values  # your own by their names, as in the report
        check_name(f"{key} of {{{name}}}", value, values)
        rows = rows[values == value]
    if len(rows) > 1:
        kind = EXPERIMENTS[experiment]
        apart = [key for key in (*parameters(kind), *kind.details) if rows[key].nunique() > 1]
        raise ValueError(f"{{{name}}} matches {len(rows)} rows; allowed: one; they differ in {', '.join(apart)}")
    row = rows.iloc[0]
    return with_unit(row[statistic], row["unit"]) if row["unit"] else significant(row[statistic])
