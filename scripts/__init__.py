"""Post-processing of recorded CSVs into tables, figures and the report; pandas, never torch."""
