"""The mistakes of `tools/mutator.py`: every changed source is valid and different, and no text is changed."""

from __future__ import annotations

import ast
import tomllib

from tools import machine_mutants
from tools.machine_mutants import ROOT, TESTS
from tools.mutator import changes

SOURCE = '''
"""Words: 1 + 1."""

from __future__ import annotations

LIMIT = 0.5


class Thing:
    size: int = 3

    @property
    def one(self, x: Literal[1], *, scale: float = 2.0) -> float:
        """Not - this."""
        x = jnp.exp(x - 1) if x > LIMIT else x
        if not x:
            raise ValueError(f"{x + 1} is > 0")
        print("é", jnp.minimum(x, -scale))
        return jnp.where(x == 0, x, jnp.sqrt(jnp.sum(x)))
'''
MADE = {
    ("0.5", "1.0"),
    ("x = jnp.exp(x - 1) if x > LIMIT else x", "pass"),
    ("2.0", "1.0"),
    *(("x - 1", after) for after in ("(x + 1)", "(x)", "1")),
    *(("x > LIMIT", after) for after in ("(x >= LIMIT)", "(x < LIMIT)")),
    ("1", "2"),
    ("jnp.exp(x - 1)", "(x - 1)"),
    ("jnp.exp(x - 1) if x > LIMIT else x", "(x if x > LIMIT else jnp.exp(x - 1))"),
    ("not x", "(x)"),
    ('raise ValueError(f"{x + 1} is > 0")', "pass"),
    ('print("é", jnp.minimum(x, -scale))', "pass"),
    ("jnp.minimum(x, -scale)", "(jnp.maximum(x, -scale))"),
    ("-scale", "(scale)"),
    ("jnp.where(x == 0, x, jnp.sqrt(jnp.sum(x)))", "(jnp.where(x == 0, jnp.sqrt(jnp.sum(x)), x))"),
    ("x == 0", "(x != 0)"),
    ("0", "1"),
    ("jnp.sqrt(jnp.sum(x))", "(jnp.sum(x))"),
    ("jnp.sum(x)", "(jnp.mean(x))"),
}


def test_mutation_rules_change_only_their_operators():
    result = changes(SOURCE)
    assert {(change.before, change.after) for change in result} == MADE
    assert all(change.before.splitlines()[0] in SOURCE.splitlines()[change.line - 1] for change in result)


def test_every_change_is_another_program():
    source = (ROOT / "bnnzoo/samplers/subsampled/noise_penalty.py").read_text()
    original, result = ast.dump(ast.parse(source)), changes(source)
    assert len(result) > 50
    assert all(ast.dump(ast.parse(change.made(source))) != original for change in result)


def test_every_mutated_module_and_its_tests_exist():
    for module, tests in TESTS.items():
        assert (ROOT / "bnnzoo" / f"{module}.py").is_file(), module
        assert all((ROOT / machine_mutants.test_file(name)).is_file() for name in tests.split()), module
    for part in ("samplers", "posterior", "evaluation"):
        paths = [path for path in (ROOT / "bnnzoo" / part).rglob("*.py") if path.stem != "__init__"]
        modules = {path.relative_to(ROOT / "bnnzoo").with_suffix("").as_posix() for path in paths}
        assert modules - set(TESTS) == set()


def test_the_lines_of_equivalent_mutants_exist():
    """An entry whose line has changed would no longer explain a survivor."""
    for entry in tomllib.loads(machine_mutants.EQUIVALENT.read_text())["mutant"]:
        lines = {line.strip() for line in (ROOT / "bnnzoo" / f"{entry['module']}.py").read_text().splitlines()}
        assert entry["text"] in lines, entry
        assert entry["before"] in entry["text"], entry
