"""Passes, permutations, layouts and NumPyro models of the posterior, each tested at its limits."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from gaussian_mean import GaussianMean
from numpyro.infer.util import initialize_model

from bnnzoo.errors import UsageError
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior, backend, passes
from bnnzoo.posterior.hyperparameter import as_number
from bnnzoo.posterior.layout import Block, Layout, network_layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.numpyro import NumpyroPosterior
from bnnzoo.posterior.outputs import Outputs
from bnnzoo.posterior.permutation import distinct_indices, integers_below
from bnnzoo.posterior.priors import Normal
from bnnzoo.posterior.stochastic import last_names, sampled_names, with_leaves

KEY = jax.random.key(0)

# ---- passes --------------------------------------------------------------------------------------


def test_a_pass_is_over_blocks_of_as_many_rows_as_its_widest_value_allows(monkeypatch):
    """Inputs of three numbers, a layer of seven, one value: 1400 elements are 200 rows, and never fewer than 64."""
    rng = np.random.default_rng(0)
    data, weights = rng.normal(size=(500, 3)).astype(np.float32), rng.normal(size=(3, 7)).astype(np.float32)
    expected = np.tanh(data @ weights).sum(1)

    def sizes(elements: int, rows: int) -> list[int]:
        block_sizes: list[int] = []

        def function(batch: Any) -> Any:
            block_sizes.append(len(batch))
            return jnp.sum(jnp.tanh(batch @ weights), 1)

        monkeypatch.setattr(passes, "_BLOCK_ELEMENTS", elements)
        result = passes.over_blocks(data, rows, function)
        np.testing.assert_allclose(result, expected[:rows], rtol=1e-4, atol=1e-5)
        return sorted(set(block_sizes) - {509})

    assert sizes(1400, 500) == [100, 200]
    assert sizes(1400, 400) == [200]
    assert sizes(1400, 200) == [200]
    assert sizes(1400, 199) == [199]
    assert sizes(1400, 201) == [1, 200]
    assert sizes(1, 500) == [52, 64]
    assert sizes(2**21, 500) == [500]


@pytest.mark.parametrize(("rows", "blocks"), [(500, [100, 200]), (400, [200]), (201, [1, 200]), (200, [200]), (7, [7])])
def test_values_and_gradient_need_one_sweep(rows, blocks, monkeypatch):
    """Blocks have 200 rows, and none is computed twice, unlike in the derivative of a checkpointed pass."""
    rng = np.random.default_rng(0)
    data, theta = rng.normal(size=(500, 7)), rng.normal(size=7)
    calls: list[int] = []

    def function(theta: Any, batch: Any) -> Any:
        calls.append(len(batch))
        return jnp.tanh(batch @ theta)

    monkeypatch.setattr(passes, "_BLOCK_ELEMENTS", 1400)
    sweep = lambda data, theta: passes.values_and_gradient(data, rows, function, theta)  # noqa: E731
    jaxpr = str(jax.make_jaxpr(sweep)(data.astype(np.float32), theta.astype(np.float32)))
    assert sorted(set(calls) - {509}) == blocks
    assert jaxpr.count("tanh") == len(blocks)
    values, gradient = sweep(data.astype(np.float32), jnp.asarray(theta, jnp.float32))
    expected = np.tanh(data[:rows] @ theta)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, (1 - expected**2) @ data[:rows], rtol=1e-3, atol=1e-4)


def test_the_widest_value_of_a_row():
    x, y = np.zeros((5, 3), np.float32), np.zeros((5, 2), np.float32)
    assert passes.widest((x, y), lambda batch: jnp.sum(batch[0], 1)) == 3
    assert passes.widest((x[:, :0], y[:, :0]), lambda batch: jnp.zeros(len(batch[0]))) == 1
    assert passes.widest((x, y), lambda batch: jnp.sum(batch[0] @ jnp.ones((3, 11)), 1)) == 11
    outer = lambda batch: jnp.sum(jax.vmap(lambda a, b: jnp.outer(a, b) ** 2)(*batch), (1, 2))  # noqa: E731
    assert passes.widest((x, y), outer) == 6
    inner = lambda batch: jax.jit(lambda a: jnp.sum(a @ jnp.ones((3, 11)), 1))(batch[0])  # noqa: E731
    assert passes.widest((x, y), inner) == 11


@pytest.mark.parametrize(("size", "blocks"), [(0, 10), (1, 10), (3, 4), (5, 2), (9, 2), (10, 1), (64, 1)])
def test_a_sum_has_every_row_once(size, blocks):
    data = np.arange(1.0, 11.0, dtype=np.float32)

    def part(batch: Any, weights: Any) -> Any:
        return {"sum": jnp.sum(batch * weights), "rows": jnp.sum(weights), "blocks": jnp.ones(())}

    result = passes.sum_over_blocks(data, 10, part, size=size)
    assert {name: float(value) for name, value in result.items()} == {"sum": 55, "rows": 10, "blocks": blocks}
    fewer = passes.sum_over_blocks(data, 7, part, size=size)
    assert (float(fewer["sum"]), float(fewer["rows"])) == (28, 7)
    most = passes.sum_over_blocks(data, 10, lambda batch, w: jnp.max(batch * w), size=size, add=jnp.maximum)
    assert float(most) == 10


@pytest.mark.parametrize(("rows", "together"), [(8, 4), (7, 7)])
def test_rows_are_split_over_the_devices_that_they_divide_by(rows, together):
    """Two devices have four of eight rows each; seven rows are processed as on one device."""
    counts: list[int] = []

    def part(batch: Any, weights: Any) -> Any:
        counts.append(len(batch))
        return jnp.sum(batch * weights)

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), (passes.DATA_AXIS,))
    with jax.set_mesh(mesh):
        result = jax.jit(lambda data: passes.sum_over_blocks(data, rows, part, size=rows))(jnp.arange(1.0, rows + 1))
    assert float(result) == rows * (rows + 1) / 2
    assert set(counts) == {together}


# ---- permutations --------------------------------------------------------------------------------


def _feistel(total: int, key: Any) -> np.ndarray:
    """Return the whole permutation, by NumPy: eight rounds, and cycle walking for values beyond the end."""

    def mix(value: np.ndarray) -> np.ndarray:
        value = (value ^ (value >> 16)) * 0x85EBCA6B % 2**32
        value = (value ^ (value >> 13)) * 0xC2B2AE35 % 2**32
        return value ^ (value >> 16)

    bits = (total - 1).bit_length()
    low = bits // 2
    keys = np.asarray(jax.random.bits(key, (8,))).astype(np.uint64)

    def permute(value: np.ndarray) -> np.ndarray:
        high, low_bits = value >> low, value % 2**low
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            high = high ^ (mix(low_bits ^ first) % 2 ** (bits - low))
            low_bits = low_bits ^ (mix(high ^ second) % 2**low)
        return (high << low) | low_bits

    value = permute(np.arange(total, dtype=np.uint64))
    while (beyond := value >= total).any():
        value[beyond] = permute(value[beyond])
    return value.astype(np.int32)


@pytest.mark.parametrize("total", [65, 100, 128, 129, 5003])
def test_beyond_sixty_four_indices_are_a_networks_permutation(total):
    expected = _feistel(total, KEY)
    np.testing.assert_array_equal(np.sort(expected), np.arange(total))
    np.testing.assert_array_equal(distinct_indices(total, total, key=KEY), expected)
    np.testing.assert_array_equal(distinct_indices(5, total, key=KEY), expected[:5])
    np.testing.assert_array_equal(distinct_indices(7, total, start=40, key=KEY), expected[40:47])


@pytest.mark.parametrize("total", [2, 7, 64])
def test_up_to_sixty_four_indices_are_the_order_of_random_bits(total):
    expected = np.argsort(-np.asarray(jax.random.bits(KEY, (total,))).astype(np.int64), kind="stable")
    np.testing.assert_array_equal(distinct_indices(total, total, key=KEY), expected)
    np.testing.assert_array_equal(distinct_indices(2, total, key=KEY), expected[:2])
    for start in (0, total - 2, jnp.uint32(total - 2)):
        result = distinct_indices(2, total, start=start, key=KEY)
        np.testing.assert_array_equal(result, expected[int(start) : int(start) + 2])


@pytest.mark.parametrize("total", [1, 6, 65_535, 65_536, 65_537, 10**6, 2**31, 2**32 - 1])
def test_integers_below_a_number_are_the_high_word_of_a_product(total):
    bits = np.asarray(jax.random.bits(KEY, (2000,), jnp.uint32)).tolist()
    result = np.asarray(integers_below(jnp.uint32(total), 2000, key=KEY)).tolist()
    assert result == [value * total >> 32 for value in bits]


# ---- the posterior itself ------------------------------------------------------------------------


def test_defaults_of_a_posterior():
    posterior = GaussianMean(np.arange(10.0))
    assert posterior.padded(5) is posterior
    with pytest.raises(UsageError, match="data=3 must be a divisor of the number of rows, 10, because"):
        posterior.padded(3)
    with pytest.raises(UsageError, match=r"^GaussianMean: cannot draw from its prior .* such as nuts$"):
        posterior.sample_prior(key=KEY)
    np.testing.assert_array_equal(posterior.minibatch(10, replace=False, key=KEY), np.arange(10.0))
    draws = np.asarray(posterior.minibatch(10, key=KEY))
    assert len(np.unique(draws)) < 10
    assert len(np.unique(posterior.minibatch(9, replace=False, key=KEY))) == 9
    np.testing.assert_array_equal(posterior.log_likelihood_bounds(posterior.data[:3]), [np.inf] * 3)
    np.testing.assert_array_equal(posterior.start(key=KEY), jax.random.normal(KEY, (1,)))
    assert posterior.fixed_prior() is None
    assert not posterior.has_outputs
    for ask in (
        lambda: posterior.outputs(jnp.zeros(1), jnp.zeros((1, 1))),
        lambda: posterior.likelihood_at(jnp.zeros(1)),
    ):
        with pytest.raises(NotImplementedError, match="has no outputs"):
            ask()


def test_the_layer_of_each_parameter():
    layout = network_layout(Mlp((4,)).build((3,), 2, key=KEY))
    np.testing.assert_array_equal(layout.layer_index(), [0] * 16 + [1] * 10)
    single = Layout((Block("weight", (2,), 0), Block("bias", (), 2)))
    np.testing.assert_array_equal(single.layer_index(), [0, 0, 0])
    assert (single.dim, Layout(()).dim) == (3, 0)
    assert [block.layer for block in (*layout.blocks, *single.blocks)] == ["layers_0"] * 2 + ["layers_1"] * 2 + [""] * 2
    assert layout.name_of(15) == "layers_0_bias[3]"
    assert layout.name_of(16) == "layers_1_weight[0, 0]"


def test_numbers_become_float32_and_none_stays():
    for value in (1, 0.5, np.float64(0.5), np.int64(3)):
        assert isinstance(as_number(value), np.float32)
        assert as_number(value) == value
    assert as_number("auto") == "auto"


def test_kept_predictions_contain_outputs_and_likelihood_parameters():
    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    network = Linear().build((2,), 1, key=KEY)
    posterior = NetworkPosterior.of(network, Gaussian(), Normal(2.0), x, x[:, :1], input_mean=5.0, input_sd=2.0)
    outputs = Outputs.at_inputs(posterior, posterior.data.x)
    assert [(b.name, b.shape, b.start) for b in outputs.layout.blocks] == [
        ("f", (3, 1), 0),
        ("likelihood_scale", (), 3),
    ]
    theta = jnp.asarray([0.3, -0.8, 0.1, -1.5])
    values = outputs.values_at(theta)
    np.testing.assert_allclose(values[:3], posterior.outputs(theta, jnp.asarray(posterior.data.x))[:, 0], rtol=1e-5)
    assert float(values[3]) == -1.5
    table = outputs.table()
    outputs_again = table.outputs(values, jnp.asarray([2.0, 0.0]))
    np.testing.assert_allclose(outputs_again[:, 0], values[jnp.asarray([2, 0])], rtol=1e-6)
    natural = outputs.natural(np.asarray(values)[None])
    np.testing.assert_allclose(natural["likelihood_scale"], [np.exp(-1.5)], rtol=1e-5)
    np.testing.assert_array_equal(natural["f"][0, :, 0], values[:3])


def test_leaves_by_name_and_by_pattern():
    network = Mlp((3,)).build((2,), 1, key=KEY)
    moved = with_leaves(network, {"layers_1_bias": np.float64([7.0])})
    assert float(moved.layers[1].bias[0]) == 7
    assert moved.layers[1].bias.dtype == jnp.float32
    np.testing.assert_array_equal(moved.layers[0].weight, network.layers[0].weight)
    assert last_names(network, None) == last_names(network, network.layers[-1]) == {"layers_1_weight", "layers_1_bias"}
    assert sampled_names("layers_0_bias", network, None) == {"layers_0_bias"}


# ---- models of NumPyro ---------------------------------------------------------------------------


def _two_sites(x: Any, y: Any, z: Any) -> None:
    """A model that observes a vector and a number per row, the number with weight three."""
    level = numpyro.sample("level", dist.Normal(0, 1))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(level * x, rate).to_event(1), obs=y)
    with numpyro.handlers.scale(scale=3.0):
        numpyro.sample("z", dist.Normal(level, 1.0), obs=z)
    numpyro.factor("soft", -(level**2))
    numpyro.deterministic("twice", 2 * level)


def _data(rows: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in ((rows, 2), (rows, 2), (rows,)))


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2, 6])
def test_the_likelihood_of_a_row_depends_only_on_the_row(rows):
    args = _data(rows)
    posterior = NumpyroPosterior.of(_two_sites, *args)
    assert posterior.by_row == (rows > 1)
    assert posterior.num_data == (rows if rows > 1 else 1)
    theta = jnp.asarray([0.4, -0.3])
    level, rate = 0.4, np.exp(-0.3)
    x, y, z = (np.asarray(a, float) for a in args)
    each = -0.5 * ((y - level * x) / rate) ** 2 - np.log(rate) - 0.5 * np.log(2 * np.pi)
    expected = each.sum(1) + 3 * (-0.5 * (z - level) ** 2 - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(posterior.log_likelihoods(theta), expected if rows > 1 else [expected.sum()], rtol=1e-4)
    prior = -0.5 * level**2 - 0.5 * np.log(2 * np.pi) + np.log(rate) - rate - level**2 + np.log(rate)
    assert float(posterior.log_prior(theta)) == pytest.approx(prior, rel=1e-4)
    potential = initialize_model(KEY, _two_sites, model_args=args).potential_fn
    density = -float(potential(posterior.layout.unflatten(theta)))
    assert float(posterior.log_density(theta)) == pytest.approx(density, rel=1e-4)
    if rows == 1:
        with pytest.raises(UsageError, match="mini-batches are not possible"):
            posterior.minibatch(1, key=KEY)


@pytest.mark.long
def test_draws_are_named_on_their_natural_scale_whatever_axes_lead():
    posterior = NumpyroPosterior.of(_two_sites, *_data(4))
    draws = np.random.default_rng(1).normal(size=(2, 70, 2)).astype(np.float32)
    natural = posterior.natural(draws)
    assert {name: value.shape for name, value in natural.items()} == dict.fromkeys(("level", "rate", "twice"), (2, 70))
    np.testing.assert_allclose(natural["level"], draws[..., 0], rtol=1e-6)
    np.testing.assert_allclose(natural["rate"], np.exp(draws[..., 1]), rtol=1e-5)
    np.testing.assert_allclose(natural["twice"], 2 * draws[..., 0], rtol=1e-6)


def test_chains_start_within_two_of_zero():
    posterior = NumpyroPosterior.of(_two_sites, *_data(4))
    starts = np.asarray(jax.vmap(lambda key: posterior.start(key=key))(jax.random.split(KEY, 500)))
    assert -2 <= starts.min() < -1.95
    assert 1.95 < starts.max() <= 2


def _of_two_lengths(y: Any, z: Any) -> None:
    level = numpyro.sample("level", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(level, 1.0), obs=y)
    numpyro.sample("z", dist.Normal(level, 1.0), obs=z)


def _nearly(y: Any) -> None:
    """A model in which the density of a row depends on the other rows by a thousandth."""
    level = numpyro.sample("level", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(level + 1e-3 * jnp.sum(y), 1.0), obs=y)


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("rows", [2, 3, 5])
def test_rows_of_which_one_half_alone_knows_of_others_are_one_datum(rows, later):
    """A row depends on the previous or on the next row, so one of two rows is independent of the other."""

    def model(y: Any) -> None:
        level = numpyro.sample("level", dist.Normal(0, 1))
        nothing = jnp.zeros(1)
        other = jnp.concatenate([nothing, y[:-1]] if later else [y[1:], nothing])
        numpyro.sample("y", dist.Normal(level * other, 1.0), obs=y)

    y = np.arange(1.0, rows + 1, dtype=np.float32)
    posterior = NumpyroPosterior.of(model, y)
    assert not posterior.by_row
    before = np.r_[0, y[:-1]] if later else np.r_[y[1:], 0]
    expected = np.sum(-0.5 * (y - 0.4 * before) ** 2 - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(posterior.log_likelihoods(jnp.asarray([0.4])), [expected], rtol=1e-5)


@pytest.mark.parametrize("tie", [lambda u: u, jax.nn.relu, lambda u: jax.nn.relu(-u)])
def test_rows_that_one_of_three_parameters_ties_together_are_one_datum(tie):
    """The one in the middle, and also if only values of one sign tie: a row and the one before it, by a factor."""

    def model(y: Any) -> None:
        a, b, c = (numpyro.sample(name, dist.Normal(0, 1)) for name in "abc")
        before = jnp.concatenate([jnp.zeros(1), y[:-1]])
        numpyro.sample("y", dist.Normal(a + tie(b) * before + c, 1.0), obs=y)

    assert not NumpyroPosterior.of(model, np.arange(1.0, 7.0, dtype=np.float32)).by_row


def _by_its_ends(y: Any) -> None:
    """A prior that depends on the distance of the last row from the first, like the density of every second row."""
    level = numpyro.sample("level", dist.Normal(0, 1 + y[-1] - y[0]))
    numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def test_independent_sites_are_split_into_rows():
    y = np.float32([1.0, 2.0, 3.0, 4.0])
    assert not NumpyroPosterior.of(_of_two_lengths, y, y[:3]).by_row
    assert NumpyroPosterior.of(_of_two_lengths, y, y).by_row
    assert not NumpyroPosterior.of(_nearly, y).by_row
    assert not NumpyroPosterior.of(_by_its_ends, y[:3]).by_row
    posterior_whole = NumpyroPosterior.of(_of_two_lengths, y, y[:3])
    assert [leaf.shape for leaf in posterior_whole.data] == [(1, 4), (1, 3)]
    with pytest.raises(UsageError, match="the arguments of the model must contain the data"):
        NumpyroPosterior.of(lambda: _nearly(y))


# ---- the process ---------------------------------------------------------------------------------


def test_the_cache_may_hold_two_gibibytes(monkeypatch, tmp_path):
    removed: list[str] = []
    monkeypatch.setattr(backend.os, "unlink", removed.append)

    def remaining(*sizes: float) -> list[str]:
        def entry(number: int, size: float) -> Any:
            file_status = types.SimpleNamespace(st_mtime=number, st_size=int(size * 2**30))
            return types.SimpleNamespace(stat=lambda: file_status, path=str(number))

        entries = [entry(number, size) for number, size in enumerate(sizes)]
        monkeypatch.setattr(backend.os, "scandir", lambda folder: entries[::-1])
        removed.clear()
        backend._limit_cache.__wrapped__(tmp_path)
        return list(removed)

    assert remaining(1, 1) == []
    assert remaining(1, 0.5, 1) == ["0"]
    assert remaining(0.25, 0.5, 2) == ["0", "1"]


def test_the_cache_that_is_turned_on_is_bounded_and_one_that_was_chosen_is_not(monkeypatch, tmp_path):
    bounded: list[Any] = []
    monkeypatch.setattr(backend, "_limit_cache", bounded.append)
    monkeypatch.setattr(backend, "forget_programs", lambda: None)
    monkeypatch.setattr(backend.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)

    def turned_on(cache_folder: str | None) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        config = types.SimpleNamespace(values={"jax_compilation_cache_dir": cache_folder}, update=settings.__setitem__)
        monkeypatch.setattr(backend, "jax", types.SimpleNamespace(config=config, __version__="1.2"))
        backend.keep_programs()
        return settings

    assert turned_on("elsewhere") == {}
    assert bounded == []
    folder = tmp_path / "bnnzoo" / "jax-1.2"
    assert turned_on(None)["jax_compilation_cache_dir"] == str(folder)
    assert bounded == [folder]
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert turned_on(None) == {}
    assert bounded == [folder]


def test_programs_are_forgotten_from_a_third_of_the_maps_on(monkeypatch, tmp_path):
    cleared: list[int] = []
    monkeypatch.setattr(backend.jax, "clear_caches", lambda: cleared.append(1))
    monkeypatch.setattr(backend, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(backend, "_MAX_MAPS", tmp_path / "most")
    (tmp_path / "most").write_text("32\n")
    for used, times in ((10, 0), (11, 1)):
        (tmp_path / "maps").write_bytes(b"a map\n" * used)
        backend.forget_programs()
        assert len(cleared) == times


@pytest.mark.long
@pytest.mark.parametrize("first", ["float32", "float64"])
def test_a_constant_array_has_the_precision_of_each_run(first):
    """JAX remembers the converted array of the first run as long as a compiled program contains it."""
    constants = np.linspace(0, 1, 4)
    inner = jax.jit(lambda x: x + jnp.asarray(constants))
    outer = jax.jit(lambda x: inner(x) * constants)
    for precision in (first, "float64", "float32", "float64"):
        with backend.arithmetic(precision):
            result = np.asarray(outer(jnp.ones(())))
        rounded = constants.astype(precision)
        assert result.dtype == precision
        np.testing.assert_array_equal(result, (1 + rounded) * rounded)


def test_programs_are_forgotten_if_the_precision_of_runs_changes(monkeypatch):
    cleared: list[int] = []
    monkeypatch.setattr(backend.jax, "clear_caches", lambda: cleared.append(1))
    backend._forget_other_precision.cache_clear()

    def number_after(precision: Any) -> int:
        with backend.arithmetic(precision), backend.arithmetic_within_run("float64"):
            return len(cleared)

    assert [number_after(precision) for precision in ("float64", "float64", "float32", "float32")] == [1, 1, 2, 2]
    backend._forget_other_precision.cache_clear()  # no program has been forgotten


def test_double_precision_ignores_the_global_setting():
    with jax.threefry_partitionable(False):
        for precision, kind in (("float32", jnp.float32), ("float64", jnp.float64)):
            with backend.arithmetic(precision):
                assert jnp.zeros(()).dtype == kind
                assert jax.config.jax_threefry_partitionable
                assert jax.config.jax_default_matmul_precision == "highest"
        assert not jax.config.jax_threefry_partitionable


def test_a_posterior_of_one_row_has_its_only_row():
    posterior = NetworkPosterior.of(
        Mlp((2,)).build((1,), 1, key=KEY), Gaussian(0.5), Normal(), np.ones((1, 1)), np.ones((1, 1))
    )
    assert posterior.minibatch(1, key=KEY).x.shape == (1, 1)
    assert posterior.log_likelihoods(posterior.start(key=KEY)).shape == (1,)
