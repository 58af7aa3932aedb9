"""Shared tools: log files, worker processes, and archives."""
