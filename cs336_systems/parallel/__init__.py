"""Systems that span several processes."""
