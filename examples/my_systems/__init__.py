"""A small package of a user's own code, with a right and a wrong implementation in each family."""
