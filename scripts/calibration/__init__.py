"""Constants fitted to recorded measurements: rates of the time model, and variation from run to run."""
