"""The record: measurements, where they come from, their validation, and the CSV files that keep them."""
