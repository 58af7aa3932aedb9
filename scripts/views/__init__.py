"""Derived tables, which figures, answers and checks share."""
