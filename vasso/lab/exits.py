"""What does an exit code say? 0 done, 1 something failed, 2 wrong, 130 stopped by Ctrl-C."""

WRONG, FAILED, INTERRUPTED = 2, 1, 130
"""Wrong is a setting or a name; nothing has been started then."""
