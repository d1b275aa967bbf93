"""How much of a grid or of a random test the default run tries; ``pytest -m exhaustive`` tries the rest.

The same cases are tried each time, so that a change of the code alone changes the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def sampled(cases: Iterable[Any], keep: int | Collection[Any]) -> list[Any]:
    """The parameters *cases*, of which the default run tries *keep*; the others are marked ``exhaustive``.

    *keep* is the number of cases, which are spread evenly from the first to the last one, or the cases themselves. A
    tuple holds one value for each argument.
    """
    cases = list(cases)
    if isinstance(keep, int):
        kept = [cases[index * (len(cases) - 1) // max(1, keep - 1)] for index in range(min(keep, len(cases)))]
    else:
        kept = list(keep)
        assert all(case in cases for case in kept)
    return [case if case in kept else _exhaustive(case) for case in cases]


def _exhaustive(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def examples(count: int) -> int:
    """The number of examples: *count* with the Hypothesis profile ``exhaustive``, else a part of them."""
    return max(5, count * settings().max_examples // 100)
