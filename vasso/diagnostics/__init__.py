"""Is the adversary any good, and how flat is it here? Measurements that leave no trace.

Everything here computes; drawing is apart. Results are frozen dataclasses that know their
uncertainty and how to become a row of a table.
"""
