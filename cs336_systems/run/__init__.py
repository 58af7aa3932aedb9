"""A run's machinery: supervised launches, cells kept between them, progress, locks, and why a command failed."""
