"""Settings of the site: sphinx with furo; pages in Markdown, the reference from docstrings.

`make docs` builds it with every warning an error. Nothing is fetched: there are no links into the
documentation of other projects (intersphinx would download their inventories at each build).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "vasso"
author = "The vasso authors"
copyright = "The vasso authors, MIT licence"
html_title = "vasso"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "equations",
    "from_the_repository",
    "plain_docstrings",
]
exclude_patterns = ["_build"]

# -- Markdown --------------------------------------------------------------------------------------
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks hold their outputs; tests execute them

# -- the reference ---------------------------------------------------------------------------------
default_role = "code"
add_module_names = False
maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = True
suppress_warnings = ["ref.python"]  # a type that two modules have, named without its module
nitpick_ignore_regex = [
    (r"py:.*", r"(?!vasso\.).*"),  # what other packages call their own
    (r"py:class", r"vasso\.engine\.checkpoint\.StateView"),  # a mapping to the user
]

# -- the pages -------------------------------------------------------------------------------------
html_theme = "furo"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["vasso.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1565a8", "color-brand-content": "#1565a8"},
    "dark_css_variables": {"color-brand-primary": "#6db8f2", "color-brand-content": "#6db8f2"},
}
