"""From recorded CSV files to tables, figures and the report; pandas, never torch."""
