"""What people open themselves, besides the report: traces of single steps."""
