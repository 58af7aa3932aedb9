"""Tables in Markdown, and where a page of the documentation shows them."""

from collections.abc import Collection, Iterable, Sequence

MARK = "<!-- --8<-- [{}:{}] -->\n"
"""A line around a table: start or end, and its name."""


def table(header: Sequence[str], body: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """A table, of which some columns are aligned right."""
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return "".join(f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |\n" for cells in (header, rule, *body))


def with_table(page: str, name: str, content: str) -> str:
    """The text of a page, with other content between the lines that mark a table.

    Raises:
        ValueError: it has no such lines.
    """
    begin, end = MARK.format("start", name), MARK.format("end", name)
    before, begins, rest = page.partition(begin)
    _, ends, after = rest.partition(end)
    if not (begins and ends):
        raise ValueError(f"the page has no lines {begin!r} and {end!r}")
    return before + begin + content + end + after
