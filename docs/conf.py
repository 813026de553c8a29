"""The documentation's site: `make site` builds it, with every warning an error."""

from __future__ import annotations

from llmtrace import __version__

project = "llmtrace"
author = "the llmtrace authors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
templates_path: list[str] = []
html_theme = "furo"
html_title = f"llmtrace {__version__}"
html_static_path = ["pictures"]
html_show_sphinx = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Examples are marked ```python run: what stands after the language is for the tests.
copybutton_prompt_text = "$ "
highlight_language = "none"

# Docstrings are written for people at a terminal: `name` is code.
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
nitpicky = False
