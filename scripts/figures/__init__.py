"""One module per kind of figure: `draw` is a pure function of the table's path, the picture's path and options."""
