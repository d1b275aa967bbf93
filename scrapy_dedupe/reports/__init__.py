"""Statistics of crawls, as data and as a page.

:mod:`.observations` collects them during a crawl, in bounded memory. :mod:`.sums` combines several crawls into one :class:`.figures.Report`, which ``report --json`` prints and
:mod:`.page` renders.
"""
