"""The configuration of Sphinx. `scripts/docs` builds the site."""

from crckpt import __version__

project = "crckpt"
author = "the authors of crckpt"
release = version = __version__
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"crckpt {__version__}"
html_static_path = ["static"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
# Headings of these levels can be linked to.
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
# CRIU's options look like ends of sentences: `--tcp` must stay as it is.
smartquotes = False
linkcheck_anchors = False
