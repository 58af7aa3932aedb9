"""A small package of own code: for each family a right and a wrong implementation."""
