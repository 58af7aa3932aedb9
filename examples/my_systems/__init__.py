"""A small package of one's own: for each family one implementation that is right, and one that is wrong."""
