"""A Scrapy project that shows what scrapy-dedupe does, on a small site of its own."""
