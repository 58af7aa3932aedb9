"""Shared tools: log files, worker processes, archives, and the list of the project's files."""
