"""A Scrapy project that demonstrates scrapy-dedupe on a small bundled site."""
