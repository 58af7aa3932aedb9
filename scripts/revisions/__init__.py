"""Compare the measured code with its declared revisions: `python -m scripts.revisions`."""
