"""Configuration of Sphinx. See https://www.sphinx-doc.org/en/master/usage/configuration.html"""

from __future__ import annotations

import os

from scrapy_dedupe import __version__

project = "scrapy-dedupe"
copyright = "the scrapy-dedupe developers"
release = __version__
version = ".".join(release.split(".")[:2])

extensions = ["sphinx_scrapy"]
exclude_patterns = ["_build"]
html_theme = "sphinx_rtd_theme"
html_theme_options = {"navigation_depth": 2}
html_static_path = ["_static"]
html_css_files = ["custom.css"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"

# Links into the documentation of others are fetched where the pages are published, so that anybody can build
# them without a network.
if not os.environ.get("READTHEDOCS"):
    scrapy_intersphinx_disable = ["python", "scrapy"]
