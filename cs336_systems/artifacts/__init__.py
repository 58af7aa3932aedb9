"""What people open themselves, besides the report: traces and memory snapshots of single steps."""
