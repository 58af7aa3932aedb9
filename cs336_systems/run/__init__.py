"""Running jobs: supervised launches, cells kept between them, progress, locks, and explanations of failures."""
