"""What defines each experiment: its parameters, which are its command line and its CSV columns. No torch here."""
