"""Which measured code is no longer that of its revision, and what to do about it."""
