"""The steps that the rules run, from tables to pages: measured rows in, files of the results folder out."""
