"""``scrapy dedupe VERB`` and ``scrapy-dedupe VERB``.

Both have the same verbs, which :mod:`.verbs` lists. ``scrapy-dedupe`` imports Scrapy only for verbs that need its settings or
classes.
"""
