"""What each section of the report says: one module a problem, each a pure function from tables to values and tables."""
