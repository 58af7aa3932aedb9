"""One module a figure of the report: a pure function of a table's path and the picture's path."""
