"""WARC files: what travelled (capture), how it is written (records, files), mended (salvage) and read.

Plain Python that needs no crawl: nothing here imports Scrapy or another room of the package.
"""
