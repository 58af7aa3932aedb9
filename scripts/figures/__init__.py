"""One module per kind of figure: `draw` turns tables, or the path of a trace into a matplotlib figure."""
