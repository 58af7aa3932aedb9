"""Code of one's own for the report: a package, its entries in a configuration, and a class of students."""
