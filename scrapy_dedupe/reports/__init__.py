"""What was seen during crawls, in figures and as a page.

:mod:`.observations` looks on during a crawl, in bounded memory; :mod:`.kept` is the form in which a store keeps that.
:mod:`.sums` makes of several crawls one :class:`.figures.Report`, which ``report --json`` prints and :mod:`.page`
draws.
"""
