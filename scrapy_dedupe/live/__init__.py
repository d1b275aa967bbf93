"""Code that runs in a crawl: the session shared by all components, and the parts of the layers that depend on Scrapy."""
