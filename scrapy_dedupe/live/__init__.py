"""What needs a running crawl: the session that its layers share, and the layers behind Scrapy's components."""
