"""The verbs for the stored texts, and a judge that compares texts with the stored ones without writing to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe.content import Judge
from scrapy_dedupe.downloadermiddlewares import judge_options
from scrapy_dedupe.stores.content_values import refuse_other_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy_dedupe.settings.groups import ContentSettings
    from scrapy_dedupe.stores.base import ContentStore


class _ReadOnly:
    """A content store that is never written to: parameters are compared, not recorded."""

    _READS = frozenset(("find", "has_sources", "load_template", "parameters", "remember_for"))

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


def read_only_judge(content: ContentStore, settings: ContentSettings, shown: str) -> Judge:
    """Create a judge with the options of a crawl, for :meth:`~.Judge.find` only. *shown* is the URL of the store.

    Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the store was written with other parameters.
    """
    return Judge(cast("ContentStore", _ReadOnly(content, shown)), judge_options(settings))
