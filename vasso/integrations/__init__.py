"""Training frameworks, one file each: a host is imported only in its own."""
