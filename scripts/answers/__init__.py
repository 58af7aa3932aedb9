"""The prose of the report's sections: one module per section, in which two functions are found by name.

`answers` turns all tables into the values and tables that the section's template prints; `tiles`, if there is one,
turns those answers into the headline figures on the title page.
"""
