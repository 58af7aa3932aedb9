"""What the sections of the report say: one module per section, in which two functions are found by name.

`answers`, from all tables to the values and tables that the section's template prints; `tiles`, where there is one,
from those answers to the headline figures that the title page shows.
"""
