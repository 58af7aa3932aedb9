"""Logs, processes, archives and the list of the project's files: what several rooms share."""
