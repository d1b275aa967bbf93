"""The parameters of an existing index, or of one that is to be created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .blots import blotter_of, key_bits
from .catalogue import read_manifest, refuse_other_parameters
from .snapshot import no_index, refuse_unknown_parameters
from .tokens import tokeniser_named
from .values import Parameters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def parameters_of(
    path: Path,
    tokeniser: str | None,
    blotter: str | Mapping[str, Any] | None,
    store_text: bool | None,
    *,
    create: bool,
) -> Parameters:
    """The parameters of the index in the folder *path*, or the requested ones if there is no index.

    With *create*, an index that never had a document counts as missing. Raises the exceptions of `PassageIndex`.
    """
    manifest = read_manifest(path)
    if manifest is None and not create:
        raise no_index(path)
    if manifest is None or (create and manifest.is_unused):
        made = blotter_of("rolling" if blotter is None else blotter)
        name = tokeniser_named("words" if tokeniser is None else tokeniser).name
        return Parameters(name, made.spec, store_text is not False, key_bits(made))
    has = manifest.parameters
    refuse_unknown_parameters(path, has)
    made = blotter_of(has.blotter if blotter is None else blotter)
    asked = Parameters(
        has.tokeniser if tokeniser is None else tokeniser_named(tokeniser).name,
        made.spec,
        has.has_texts if store_text is None else store_text,
        key_bits(made),
    )
    refuse_other_parameters(path, has, asked)
    return has
