"""What several rooms need: log files, worker processes, archives, and the list of the project's files."""
