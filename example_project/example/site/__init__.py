"""A small web site to crawl, without Scrapy in it: what it holds, and its server."""
