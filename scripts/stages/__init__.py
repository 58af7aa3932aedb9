"""What the rules run: a module per step, from the tables to the pages, each the end of a command."""
