"""Self-checks of the measurements, one module for each kind of experiment."""
