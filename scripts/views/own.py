"""Which rows of a table are of a user's own implementations."""

from pandas import DataFrame, Series

from cs336_systems.implementations import PARAMETER, WHO, parse_all


def own_rows(table: DataFrame) -> "Series[bool]":
    """Whether each row is: in a cell that measures only that implementation, or for that contender in a cell with
    others.
    """
    if PARAMETER not in table:
        return Series(False, index=table.index)
    who = next((column for column in WHO if column in table), None)
    texts = table[PARAMETER]
    names = {text: {own.name for own in parse_all(text)} if "=" in text else set() for text in texts.unique()}
    if who is None:
        return texts.map(lambda text: bool(names[text])).astype(bool)
    return Series([name in names[text] for text, name in zip(texts, table[who], strict=True)], table.index, bool)
