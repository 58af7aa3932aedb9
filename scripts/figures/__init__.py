"""One module per kind of figure: `draw` turns tables, or the path of a trace, and options into a matplotlib figure."""
