"""Examples of your own code in the report: a package, its configuration, and a class of students."""
