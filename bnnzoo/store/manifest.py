"""JSON records of an unfinished run: the header and the manifest, with the allowed values of each field."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from bnnzoo.store.schema import CONSTANT_DATA, OBSERVED_DATA, Attributes

_Count = Annotated[int, Field(ge=0, lt=2**40)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Array = tuple[str, list[int]]
# GROUP/NAME. Neither name may be a path.
_Key = Annotated[str, Field(pattern=r"^[a-z_]{1,64}/[^/.\x00][^/\x00]{0,200}$")]
_StaticKey = Annotated[str, Field(pattern=rf"^({OBSERVED_DATA}|{CONSTANT_DATA})/[^/.\x00][^/\x00]{{0,200}}$")]
_Dims = dict[str, list[Annotated[str, Field(pattern=r"^[^/.\x00-\x1f][^/\x00-\x1f]{0,200}$")]]]


class _StrictModel(BaseModel):
    # R-hat may be infinite, for example if chains are stuck. Pydantic would write null instead, which is not a number.
    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")


class Header(_StrictModel):
    """Root attributes at the start of a run, dimensions, and attributes of variables: `header.json`, written only once.

    A root attribute in the manifest replaces the root attribute of the same name in the header.
    """

    attributes: Attributes
    dims: _Dims
    variable_attributes: dict[str, Attributes] = {}


class Static(_StrictModel):
    """A file of arrays that have neither the dimension chain nor the dimension draw, such as the training rows."""

    file: Annotated[str, Field(pattern=r"^data(-\d{6})?\.npz$")]
    sha256: _Digest
    arrays: dict[_StaticKey, _Array]
    dims: _Dims = {}


class Part(_StrictModel):
    """A part file: the draws of one chunk."""

    file: Annotated[str, Field(pattern=r"^p000-\d{6,9}\.npz$")]
    bytes: _Count
    sha256: _Digest
    draws: dict[str, _Count]
    """Draws per chain, by group."""


class Manifest(_StrictModel):
    """Index of a run's data files and part files. A file that the manifest does not name is ignored."""

    header: _Digest
    static: list[Static]
    chains: _Count = 0
    variables: dict[_Key, _Array] = {}
    """Type of each variable with draws, and the shape of a single draw of one chain."""
    parts: list[Part] = []
    attributes: Attributes = {}
    """Root attributes that change during the run."""
    seal: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Digest of all other fields."""
