"""Options of the judge, for all content types or per content type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from scrapy_dedupe.errors import SettingError

from .banding import Banding
from .canonical import CANONICALIZERS

ALL_TYPES: Final = "*"


@dataclass(frozen=True, slots=True)
class NearOptions:
    """The near layer for one content type. Raises :class:`SettingError` for a value that is not allowed.

    ``threshold`` is the estimated Jaccard similarity at which a text counts as near; 1 turns the layer off.
    ``recall`` is the share of pairs at the threshold that must share a band. ``num_perm`` is the number of rows of a
    signature, ``shingle_size`` the number of code points of a shingle, ``min_chars`` the smallest number of
    characters of a canonical text that is compared.
    """

    threshold: float = 0.85
    recall: float = 0.99
    num_perm: int = 128
    shingle_size: int = 7
    min_chars: int = 200

    def __post_init__(self) -> None:
        _check("near_threshold", self.threshold, 0.5, 1, "a number from 0.5 to 1")
        _check("near_recall", self.recall, 0.5, 0.9999, "a number from 0.5 to 0.9999")
        _check("near_num_perm", self.num_perm, 16, 512, "a whole number from 16 to 512", int)
        _check("near_shingle_size", self.shingle_size, 2, 64, "a whole number from 2 to 64", int)
        _check("near_min_chars", self.min_chars, 0, None, "a whole number of at least 0", int)
        if self.is_on:
            try:
                _ = self.banding
            except ValueError as error:
                raise SettingError(
                    f"near_recall {self.recall!r} cannot be reached with near_threshold {self.threshold!r} and"
                    f" near_num_perm {self.num_perm!r}: {error}"
                ) from error

    @property
    def is_on(self) -> bool:
        return self.threshold < 1

    @property
    def banding(self) -> Banding:
        """The fewest bands that reach ``recall`` at the threshold."""
        return Banding.for_recall(self.threshold, self.recall, self.num_perm)

    @classmethod
    def by_type(cls, **values: Any) -> dict[str, NearOptions]:
        """Return options for each content type that *values* names, and for all others under ``*``.

        A value is a number, or a mapping of content types such as ``text/html``, or ``*``, to numbers.

        >>> options = NearOptions.by_type(threshold={"text/plain": 0.9}, min_chars=100)
        >>> options["text/plain"].threshold, options["*"].threshold, options["text/plain"].min_chars
        (0.9, 0.85, 100)
        """
        tables = {
            name: value if isinstance(value, Mapping) else {ALL_TYPES: value}
            for name, value in values.items()
        }
        defaults = {option.name: option.default for option in fields(cls)}
        for name, table in tables.items():
            for mime in table:
                if mime != ALL_TYPES and not re.fullmatch(r"[^/\s]+/[^/\s]+", str(mime)):
                    raise SettingError(
                        f"near_{name} has a value for {mime!r}. Allowed: MIME types such as text/html, and *."
                    )
        options = {}
        for mime in sorted({mime for table in tables.values() for mime in table} | {ALL_TYPES}):
            chosen: dict[str, Any] = {
                name: table.get(mime, table.get(ALL_TYPES, defaults[name])) for name, table in tables.items()
            }
            options[mime] = cls(**chosen)
        return options


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """How texts are compared. Raises :class:`SettingError` for a value that is not allowed.

    ``near`` are the near options per content type, ``*`` those for all others. ``near_identity`` is whether titles and
    URLs decide together with the texts. ``remember_for_s`` is how many seconds a text is remembered after its first
    capture; None means permanently.
    """

    canonicalizer: str = "text"
    near: Mapping[str, NearOptions] = field(default_factory=lambda: {ALL_TYPES: NearOptions()})
    template_guard: bool = True
    remember_for_s: float | None = None
    near_identity: bool = True

    def __post_init__(self) -> None:
        if self.canonicalizer not in CANONICALIZERS:
            raise SettingError(
                f"canonicalizer is {self.canonicalizer!r}. Allowed: {', '.join(map(repr, CANONICALIZERS))}."
            )
        for name in ("template_guard", "near_identity"):
            if not isinstance(value := getattr(self, name), bool):
                raise SettingError(f"{name} is {value!r}. Allowed: True or False.")
        if self.remember_for_s is not None:
            _check("remember_for", self.remember_for_s, 1, None, "a number of seconds of at least 1, or None")

    @classmethod
    def of(cls, settings: Any, remember_for_s: float | None) -> JudgeOptions:
        """Return the options with the attributes ``canonicalizer``, ``near_…`` and ``template_guard`` of *settings*."""
        names = [option.name for option in fields(NearOptions)]
        near = NearOptions.by_type(**{name: getattr(settings, f"near_{name}") for name in names})
        return cls(
            settings.canonicalizer, near, settings.template_guard, remember_for_s, settings.near_identity
        )

    def near_for(self, mime: str) -> NearOptions:
        """The near options for a content type."""
        return self.near.get(mime) or self.near[ALL_TYPES]


def _check(
    name: str, value: object, least: float, most: float | None, allowed: str, kind: type = float
) -> None:
    is_number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    # The comparisons are written so that NaN is rejected too.
    if not is_number or not value >= least or (most is not None and not value <= most):  # type: ignore[operator]
        raise SettingError(f"{name} is {value!r}. Allowed: {allowed}.")
