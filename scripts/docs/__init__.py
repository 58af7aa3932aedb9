"""The parts of README.md and docs/ that are made from the code and from recorded rows."""
