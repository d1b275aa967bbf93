"""Settings of the project. scrapy-dedupe needs only the line with ``ADDONS``."""

from __future__ import annotations

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]

ADDONS = {"scrapy_dedupe.Addon": 500}

# Limits crawls of real sites. The URL filter is sized for this number of pages.
CLOSESPIDER_PAGECOUNT = 1000

USER_AGENT = "scrapy-dedupe-example (+https://www.example.org/)"
ROBOTSTXT_OBEY = True
CONCURRENT_REQUESTS_PER_DOMAIN = 8
DOWNLOAD_DELAY = 0
COOKIES_ENABLED = False
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
LOG_LEVEL = "INFO"

EXTENSIONS = {"example.extensions.BundledSite": 0}

# The port of the bundled site. It is the same in every run, so that a second crawl finds the same URLs.
EXAMPLE_SITE_PORT = 8377
