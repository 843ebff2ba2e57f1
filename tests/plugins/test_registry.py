"""Names -> entries -> objects."""

from __future__ import annotations

import pytest

from bnnzoo.errors import NotFoundError
from bnnzoo.plugins import registry


@pytest.fixture(autouse=True)
def _only_our_own(monkeypatch):
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    yield
    registry.reset()


def test_built_in_parts_are_registered_through_the_hooks():
    (zoo,) = registry.plugins()
    assert (zoo.name, zoo.distribution, zoo.error) == ("zoo", "bnnzoo", "")
    others = (registry.RECIPES, registry.COMMANDS, registry.OBSERVERS, registry.REFERENCES)
    listed = {kind: len(registry.entries(kind)) for kind in (*registry.KINDS, *others)}
    assert zoo.counts == listed
    assert listed.pop(registry.REFERENCES) == 0  # bnnzoo-references offers them
    assert all(listed.values())


def test_entries_say_what_a_list_needs():
    penalty = registry.entries("samplers")["penalty"]
    assert (penalty.kind, penalty.exactness, penalty.distribution) == (
        "samplers",
        "noise-corrected",
        "bnnzoo",
    )
    assert all(entry.summary for kind in registry.KINDS for entry in registry.entries(kind).values())


def test_a_near_name_is_suggested():
    with pytest.raises(NotFoundError, match=r"no sampler named 'penalt'; did you mean penalty\?"):
        registry.find("samplers", "penalt")


def test_without_a_near_name_all_are_listed():
    with pytest.raises(
        NotFoundError, match="no model named 'zzz'; use one of autoregressive, cnn, density, linear, mdn, mlp, resnet"
    ):
        registry.find("models", "zzz")


def test_a_name_is_found_in_any_case_and_with_its_distribution():
    assert registry.find("samplers", "MALA") is registry.find("samplers", "bnnzoo:mala")


def test_the_full_name_of_a_built_in_part_has_no_distribution():
    assert [registry.full_name("models", name) for name in ("mlp", "MLP", "bnnzoo:mlp")] == ["mlp"] * 3
    assert registry.full_name("models", "own:Net") == "own:Net"


@pytest.mark.parametrize("kind", [kind for kind in registry.KINDS if kind != "datasets"])
def test_each_target_exists(kind):
    for name, entry in registry.entries(kind).items():
        target = registry.load(kind, name)
        if kind == "samplers":
            assert target.exactness == entry.exactness


def test_each_dataset_exists():
    for name in registry.entries("datasets"):
        assert callable(registry.load("datasets", name))
