"""What the pipeline makes on request: files for other tools to show."""
