"""The prose of the report's sections: one module per section, with two functions that are called by name.

`answers` turns all tables into the values and tables that the section's template prints; `tiles`, if it exists, turns
those answers into the headline figures on the title page.
"""
