"""A machine's results as one file for others: `make` writes it, `read` opens an untrusted one, `check` checks it."""
