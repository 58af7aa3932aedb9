"""Tables in Markdown, and their places in a page of the documentation."""

import re
from collections.abc import Collection, Iterable, Sequence


def table(header: Sequence[str], body: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """A table with some columns aligned right."""
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return "".join(f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |\n" for cells in (header, rule, *body))


def with_table(page: str, name: str, content: str) -> str:
    """The text of a page, with new content between the lines that mark a table.

    Raises:
        ValueError: it has no such lines.
    """
    begin, end = (f"<!-- --8<-- [{side}:{name}] -->\n" for side in ("start", "end"))
    text, places = re.subn(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", lambda _: content, page, flags=re.DOTALL)
    if not places:
        raise ValueError(f"the page has no lines {begin!r} and {end!r}")
    return text


def with_sections(page: str, sections: Iterable[str]) -> str:
    """The text of a page up to its first section, with new sections after it."""
    return page.partition("## ")[0] + "\n".join(sections)
