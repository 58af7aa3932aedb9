"""Self-checks of the measurements, one module per kind of experiment; `checks` takes all tables."""
