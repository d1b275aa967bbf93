"""A small web site to crawl: its pages and its server. It does not use Scrapy."""
