"""How does it look? One function per figure: it takes results and returns a matplotlib Figure.

What is drawn was computed elsewhere: nothing here evaluates a model. matplotlib and plotly are
imported in this package and nowhere else.
"""

from vasso.extras import need

need("figures", "matplotlib")
