"""The steps that the rules run, from tables to pages: they read measured rows and write files into the results
folder.
"""
