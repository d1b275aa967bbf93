"""A judge that does not write to the store, with the options of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe import downloadermiddlewares
from scrapy_dedupe.content import Judge
from scrapy_dedupe.stores.content_values import refuse_other_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.content import JudgeOptions
    from scrapy_dedupe.stores.base import ContentStore


class _ReadOnly:
    """A content store that is never written to: parameters are compared, not recorded."""

    _READS = frozenset(("find_texts", "find_near", "load_template", "parameters", "remember_for"))

    def __init__(self, content: ContentStore, url: str) -> None:
        self._content = content
        self._url = url

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        stored = {**parameters, **self._content.parameters()}
        refuse_other_parameters(self._url, stored, parameters)

    def save_template(self, host: str, template: bytes) -> None:
        """Do nothing: a read-only judge does not learn templates."""

    def __getattr__(self, name: str) -> Any:
        if name not in self._READS:
            raise AttributeError(f"{name} would write.")
        return getattr(self._content, name)


def judge_options(place: CommandStores) -> JudgeOptions:
    """The judge options of a crawl with these settings."""
    return downloadermiddlewares.judge_options(place.settings.content)


def read_only_judge(place: CommandStores, content: ContentStore) -> Judge:
    """Create a judge for :meth:`~.Judge.find` only.

    Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the store was written with other parameters.
    """
    read_only = cast("ContentStore", _ReadOnly(content, place.shown(place.content_url)))
    return Judge(read_only, judge_options(place))
