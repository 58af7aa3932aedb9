"""One module per kind of figure: `draw` is a pure function of a table's path, the picture's path and options."""
