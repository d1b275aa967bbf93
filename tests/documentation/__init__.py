"""Every block of code of README.md and docs/ is run, in the order of its page, as a reader would run it.

How a page is run
-----------------
Each page has a *world* in `worlds.py`: a fresh folder, and what stands in it before the first block. A page with blocks
and without a world fails the test. In the world

- ``example.com``, ``example.org``, ``example.net`` and names below them (http and https) are one small site
  (`site.py`), Redis at ``localhost:6379`` is an empty Redis, and ``s3://bucket`` is a folder. No other host has a name;
- ``scrapy``, ``scrapy-dedupe``, ``python``, ``python3`` and ``.venv/bin/…`` are this very Python, ``curl`` is one that asks
  the site; ``pip``, ``pre-commit``, ``tox``, ``pytest`` and ``dot`` are stand-ins that check what they are asked for
  (`programs/stand_in.py`): packages and extras have to exist, a graph has to be DOT;
- with ``"project"`` there is a Scrapy project ``shop`` with the add-on and a spider ``site`` that follows every link
  of https://example.com/. Its settings are what the page has set so far, if the world has ``settings_add_up=True``.
  Otherwise each block of settings stands alone.

What a block is
---------------
``console``: each line ``$ …`` is run by bash; folder and variables are kept from line to line, ``\\`` and ``> `` continue
it, ``host1$ …`` runs in the folder of that host. It has to end with exit code 0. Other lines are its output: they are to
be found in it (stdout and stderr) in this order; numbers, times, ids and white space may differ, ``…`` and ``...`` stand for anything.

``python``, by what it is: *settings* (capital names are assigned: read, spelled right, and a crawl with them ends
without an error or warning); *doctest*; *methods* with ``self`` (put into a spider, which crawls; each has to be called);
*components* (classes with ``from_crawler`` or ``process_item``, put into EXTENSIONS or ITEM_PIPELINES); *spiders* (crawled);
a *fragment* that uses ``response`` (put into ``parse``); anything else is a *script*, executed in the folder of the world in one
interpreter for the whole page. A comment right after a ``print`` is its output.

``json``, ``yaml`` and ``toml`` have to parse. A block of any language with ``:caption: PATH`` is that file of the world (a
``settings.py`` is added to), and is not run by itself.

``text`` is not looked at.

What a page may say
-------------------
An invisible comment right before a block, ``.. run: WORDS`` in reStructuredText, ``<!-- run: WORDS -->`` in Markdown:

``exit 3``              the last line of the block ends with this exit code
``as settings``         (or methods, component, spider, fragment, script) if the look of it says something else
``home``                the block begins in the folder that the page began in, not where the last one has left off
``alone``               these settings alone, although those of the page add up

A line that ends with ``&`` goes on in the background until the page ends; the next one waits until the port that it
names (one of the world's ``ports``) answers.

What a world may say besides is written at `worlds.World`: commands to be run before the first block, or before a line that
begins so; names for scripts; ports; and, as the last resort, lines that cannot be run, with the reason.
"""
