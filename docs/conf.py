"""Configuration of the documentation site. `make -C docs html` builds it, see CONTRIBUTING.md."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "site"))
# Tutorials type `bnnzoo`: the command of the environment that builds the site.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
# The site describes the parts of this repository, whatever plugins are installed.
os.environ["BNNZOO_DISABLE_PLUGINS"] = "1"

project = "bnnzoo"
author = "the bnnzoo authors"
version = release = importlib.metadata.version("bnnzoo")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.githubpages",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "docstrings",
    "generated_pages",
    "offline",
    "streams",
]
root_doc = "index"
smartquotes_action = "D"  # dashes only: theta' is a proposal
exclude_patterns = ["_build", "site/doors.md"]

# Markdown.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# Notebooks. BNNZOO_DOCS_EXECUTE=0 builds the site without their outputs.
nb_execution_mode = "off" if os.environ.get("BNNZOO_DOCS_EXECUTE") == "0" else "cache"
nb_execution_cache_path = str(DOCS / "_build" / "notebooks")
nb_execution_in_temp = True
nb_execution_timeout = 1800
nb_execution_show_tb = True
nb_merge_streams = True

# The reference.
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "literal"
add_module_names = False
nitpicky = True
# References to other projects may be missing without a network; the last names are internal.
nitpick_ignore_regex = [
    ("py:.*", r"(?!bnnzoo\b).*"),
    ("py:class", r"bnnzoo\.samplers(\.\w+)+\.S"),
    ("py:class", r"bnnzoo\.data(\.\w+)+\.(Encoding|Reading|Signature)"),
    ("py:class", r"bnnzoo\.sklearn\.base\.AbstractBayesian"),
]

# Without a network the links to other projects are left out, and the build succeeds.
intersphinx_timeout = 5
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "jax": ("https://docs.jax.dev/en/latest", None),
    "equinox": ("https://docs.kidger.site/equinox", None),
    "numpyro": ("https://num.pyro.ai/en/stable", None),
    "xarray": ("https://docs.xarray.dev/en/stable", None),
    "arviz": ("https://python.arviz.org/en/stable", None),
}

html_theme = "pydata_sphinx_theme"
html_title = "bnnzoo"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "back_to_top_button": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
copyright = author
