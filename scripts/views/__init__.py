"""Tables derived from tables: what figures, answers and checks share."""
