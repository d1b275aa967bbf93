"""Ages on the command line: ``30d``, ``12h``, ``8w``, or a date or time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from scrapy_dedupe.errors import SettingError

_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([hdw]?)")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24, "": 24}


def time_before(age: str, now: datetime, option: str = "--older-than") -> datetime:
    """Return the time (UTC) that lies *age* before *now*. A number without a unit counts days.

    Raises :class:`~scrapy_dedupe.errors.SettingError`, which names *option*, for any other text.

    >>> now = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> [time_before(age, now).isoformat()[:13] for age in ("1", "1.5d", "12h", "2w", "2026-01-01")]
    ['2026-03-01T12', '2026-03-01T00', '2026-03-02T00', '2026-02-16T12', '2026-01-01T00']
    """
    if match := _AGE.fullmatch(age):
        try:
            return now - timedelta(hours=float(match[1]) * _HOURS[match[2]])
        except OverflowError as error:
            raise SettingError(f"{option} is {age!r}, which is too long ago.") from error
    try:
        time = datetime.fromisoformat(age)
    except ValueError as error:
        raise SettingError(
            f"{option} is {age!r}. Allowed: hours such as 12h, days such as 30d, weeks such as 8w, or a date or time"
            " such as 2026-01-01."
        ) from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
