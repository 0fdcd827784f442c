"""How does it look? One function per figure: it takes results and returns a matplotlib Figure.

What is drawn was computed elsewhere: nothing here evaluates a model. matplotlib and plotly are
imported in this package and nowhere else.
"""

from importlib.util import find_spec

if find_spec("matplotlib") is None:
    raise ModuleNotFoundError(
        "figures are drawn with matplotlib, which is missing: pip install 'vasso[figures]'"
    )
