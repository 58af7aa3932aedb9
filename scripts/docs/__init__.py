"""The generated parts of README.md and docs/, from the code and from recorded rows."""
