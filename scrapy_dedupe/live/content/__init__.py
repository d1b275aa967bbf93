"""The verdict of each page of a running crawl."""
