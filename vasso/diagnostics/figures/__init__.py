"""Figures of results: one function per figure takes results and returns a matplotlib Figure.

The results are computed elsewhere: nothing in this package evaluates a model. matplotlib and plotly
are imported in this package and nowhere else.
"""

from vasso.optional import check_installed

check_installed("figures", "matplotlib")
