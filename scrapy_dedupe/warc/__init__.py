"""WARC files: captured exchanges (capture), writing them (records, files), salvage and reading.

Plain Python that needs no crawl: no module here imports Scrapy or another subpackage.
"""
