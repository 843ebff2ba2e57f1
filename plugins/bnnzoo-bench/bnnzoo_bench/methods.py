"""Methods of a benchmark: bnnzoo's default, MODEL:SAMPLER, SAMPLER, a recipe file, or a peer (another package)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bnnzoo.errors import UsageError

GROUP = "bnnzoo_bench_peers"
"""Name of the entry-point group in which other packages register peers."""

Kind = Literal["default", "pair", "sampler", "recipe", "peer"]
_DATA = frozenset(
    (
        *("data", "target", "task", "columns", "drop", "categories", "missing", "missing_code", "unseen", "exposure"),
        *("censored", "separator", "decimal", "skip_rows", "encoding", "test_fraction", "split_seed"),
    )
)
"""Keys of a recipe that determine the training rows."""
_UNUSED = frozenset(("seed", "example", "distributed", "requires"))
"""Further keys of a recipe that the benchmark itself determines, or does not use."""


class Method(NamedTuple):
    """A method of the benchmark: its name in the results, its kind, and its definition."""

    name: str
    kind: Kind
    target: str = ""
    """Definition of the method, in a form that depends on `kind`.

    The definition is MODEL:SAMPLER for a pair, the name for a sampler, the path of the file for a recipe,
    package.module:Class for a peer, and "" for the default.
    """

    @property
    def sha256(self) -> str:
        """SHA-256 of the recipe file, or of the file that defines an own class; empty for other methods.

        Raises:
            UsageError: if a peer cannot be imported.
        """
        file = Path(self.target) if self.kind == "recipe" else _own_file(self) if self.kind == "peer" else None
        return hashlib.sha256(file.read_bytes()).hexdigest() if file else ""


def parse_methods(names: Iterable[str]) -> list[Method]:
    """Return the methods with the given names. `--methods` accepts the same names.

    Raises:
        UsageError: if a name is not a method or occurs twice, or if there are no names.
    """
    methods: dict[str, Method] = {}
    for name in names:
        method = _parse(name)
        if methods.setdefault(method.name, method) is not method:
            raise UsageError(f"--methods: {method.name} occurs twice; remove one of them")
    if not methods:
        raise UsageError("--methods: expected at least one method, such as --methods default,linear")
    return list(methods.values())


def _parse(name: str) -> Method:
    if name == "default":
        return Method(name, "default")
    peers = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    if name in peers:
        return Method(name, "peer", peers[name])
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UsageError(f"--methods: {name}: no such recipe file")
        return Method(Path(name).stem, "recipe", name)
    before, colon, after = name.partition(":")
    if _is("samplers", name):  # the name can have the form PACKAGE:SAMPLER
        return Method(name, "sampler", name)
    if before and after:
        # Models and samplers are lower case. A lower-case name is a class only if its module exists and no model has
        # the name of the module.
        is_class = after.isidentifier() and (after[0].isupper() or (not _is("models", before) and _is_module(before)))
        return Method(name, "peer" if is_class else "pair", name)
    forms = ", ".join(["default", *sorted(peers), "MODEL:SAMPLER", "SAMPLER", "recipe.yaml", "package.module:Class"])
    empty = " (nothing before or after the colon)" * bool(colon)
    raise UsageError(f"--methods: unknown method {name!r}{empty}; use one of {forms}")


def _is(kind: str, name: str) -> bool:
    """Return whether a part of this kind is registered under this name."""
    from bnnzoo.plugins import registry

    return registry.get(kind, name) is not None


def _is_module(name: str) -> bool:
    _search_in_working_folder()
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package is missing, or the name is not one of a module
        return False


def _search_in_working_folder() -> None:
    """Let imports find the user's own modules in the working folder."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)


def _own_file(method: Method) -> Path | None:
    """Return the file that defines the class of a peer; None for a class of this package or an installed package."""
    module = _load_class(method).__module__
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    is_installed = module.startswith("bnnzoo_bench.") or {"site-packages", "dist-packages"} & set(file.parts)
    return file if file.is_file() and not is_installed else None


def load_peer(method: Method) -> Any:
    """Import the class of a peer, and return a new object of this class.

    Raises:
        UsageError: if the class, one of its methods, or a package is missing.
    """
    return _load_class(method)()


def _load_class(method: Method) -> Any:
    home, _, attribute = method.target.partition(":")
    _search_in_working_folder()
    try:
        peer_class = getattr(import_module(home), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"--methods: {method.name}: cannot be imported ({error}); install the package of the class, run the "
            "command in the folder of its module, or write MODEL:SAMPLER with names from bnnzoo list"
        ) from error
    if missing := [name for name in ("fit", "predict") if not callable(getattr(peer_class, name, None))]:
        raise UsageError(f"--methods: {method.name}: the class has no method {missing[0]}; add it (see docs/bench.md)")
    peer_version(peer_class, method)
    return peer_class


def peer_version(peer_class: Any, method: Method) -> dict[str, str]:
    """Return the version of the package that the peer requires, with the name of the package as key.

    Raises:
        UsageError: if the package is not installed.
    """
    package = getattr(peer_class, "requires", "")
    try:
        return {package: version(package)} if package else {}
    except PackageNotFoundError as error:
        raise UsageError(
            f"--methods: {method.name} requires the package {package}, which is not installed: pip install {package}"
        ) from error


def check_methods(methods: Iterable[Method]) -> None:
    """Check that methods can be fitted, before any data are read.

    Raises:
        UsageError: if a model or a sampler is unknown, a recipe is invalid, or the class of a peer or its package is
            missing.
    """
    pairs = []
    for method in methods:
        if method.kind == "peer":
            load_peer(method)
        elif method.kind == "recipe":
            keywords_of(Path(method.target).read_text(encoding="utf-8"), method.target)
        elif method.kind == "pair":
            pairs.append(method)
    if not pairs:
        return
    # `bnnzoo list` does not import JAX, and its output includes the models and samplers of plugins.
    command = [sys.executable, "-m", "bnnzoo", "list", "--json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    entries = json.loads(listed.stdout)
    for method in pairs:
        model, _, sampler = method.target.partition(":")
        for kind, name in (("model", model), ("sampler", sampler)):
            names = [entry["name"] for entry in entries if entry["kind"] == kind]
            if name.rpartition(":")[2].lower() not in names:  # the name can have the form PACKAGE:NAME
                raise UsageError(
                    f"--methods: {method.name}: unknown {kind} {name!r}; use one of {', '.join(names)}; for your own "
                    "class write module:Class, and run the command in the folder of the module"
                )


def keywords_of(recipe: str, place: str = "the recipe") -> dict[str, Any]:
    """Return the keyword arguments of `bnnzoo.sample` that the text of a recipe sets.

    Error messages start with `place`. Keys without a value are omitted. The keys that the benchmark itself
    determines or does not use, such as `data`, `seed` and `example`, are omitted too.

    Raises:
        UsageError: if the text is not a YAML mapping, or if it defines several runs (`sweep`).
    """
    content = _content_of(recipe, place)
    if "sweep" in content:
        raise UsageError(f"{place}: sweep: defines several runs, but a method is one run; write one recipe per run")
    return {key: value for key, value in content.items() if key not in _DATA | _UNUSED}


def _content_of(recipe: str, place: str) -> dict[str, Any]:
    """Return the keys and values in the text of a recipe, without the keys that have no value."""
    from ruamel.yaml import YAML, YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(recipe)
    except YAMLError as error:
        raise UsageError(f"{place}: invalid YAML ({' '.join(str(error).split())}); correct it") from error
    if not isinstance(content, dict):
        raise UsageError(f"{place}: expected a mapping such as 'model: mlp', got {type(content).__name__}")
    # In a key of a recipe, - and _ are equivalent.
    return {str(key).replace("-", "_"): value for key, value in content.items() if value is not None}


_POSTERIOR = frozenset(
    (
        *("model", "likelihood", "prior", "standardise", "units", "likelihood_power", "stochastic"),
        *("other_directions", "prior_from", "start_steps", "start_held_out"),
    )
)
"""Keys of a recipe that determine the posterior and the trained initial positions, but not the sampler."""


def posterior_keywords(recipe: str) -> dict[str, Any]:
    """Return the keyword arguments that a recipe sets for the posterior and the trained initial positions."""
    return {key: value for key, value in keywords_of(recipe).items() if key in _POSTERIOR}


def data_keywords(recipe: str) -> dict[str, Any]:
    """Return the keyword arguments that a recipe sets for the training rows."""
    return {key: value for key, value in _content_of(recipe, "the recipe").items() if key in _DATA}
