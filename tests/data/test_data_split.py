"""Splitting, scaling, and the zoo's own data sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bnnzoo.data import Scaler, from_arrays, load, registered, split
from bnnzoo.errors import UsageError

pytestmark = pytest.mark.usefixtures("as_options")


def numbered(n: int, labels=None):
    """A data set whose rows can be told apart."""
    return from_arrays(np.arange(n, dtype=float), np.arange(n, dtype=float) if labels is None else labels)


# ---------------------------------------------------------------------------------------------- split


@pytest.mark.parametrize("n", [2, 3, 10, 11, 99])
@pytest.mark.parametrize("test_fraction", [0.1, 0.25, 0.5])
def test_split_is_a_partition(n, test_fraction):
    train, test = split(numbered(n), test_fraction=test_fraction, seed=3)
    assert test is not None
    assert test.num_data == int(np.ceil(test_fraction * n))
    np.testing.assert_array_equal(np.sort(np.concatenate([train.x, test.x]), axis=0)[:, 0], np.arange(n))
    np.testing.assert_array_equal(train.x, train.y)


def test_split_is_scikit_learns():
    from sklearn.model_selection import train_test_split

    train, test = split(numbered(50), test_fraction=0.1, seed=7)
    expected = train_test_split(np.arange(50.0), test_size=0.1, random_state=7)
    np.testing.assert_array_equal(train.x[:, 0], expected[0])
    np.testing.assert_array_equal(test.x[:, 0], expected[1])


def test_split_depends_on_the_seed_alone():
    first, same_seed, other = (split(numbered(50), test_fraction=0.2, seed=seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.x, same_seed.x)
    assert not np.array_equal(first.x, other.x)


def test_split_keeps_class_proportions():
    labels = np.repeat([0, 1], [80, 20])
    for seed in range(5):
        _, test = split(numbered(100, labels), test_fraction=0.2, seed=seed)
        np.testing.assert_array_equal(np.bincount(test.y), [16, 4])


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 1], [0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 2, 2, 3, 3]])
def test_split_where_proportions_cannot_be_kept(labels):
    for test_fraction in (0.1, 0.9):
        data = numbered(len(labels), labels)
        if np.ceil(test_fraction * len(labels)) == len(labels):
            continue
        train, test = split(data, test_fraction=test_fraction, seed=0)
        assert train.num_data + test.num_data == len(labels)
        assert train.num_classes == test.num_classes == data.num_classes


def test_split_with_no_test_rows():
    data = replace(numbered(5), test=numbered(3))
    train, test = split(data, test_fraction=0.0, seed=0)
    assert test is None
    assert train.num_data == 5
    assert train.test is None


def test_a_given_test_set_is_used():
    own = numbered(3)
    train, test = split(replace(numbered(5), test=own), test_fraction=0.1, seed=0)
    assert test is own
    assert (train.num_data, train.test) == (5, None)


@pytest.mark.parametrize("labels", [[2.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
def test_a_test_set_of_its_own_has_the_classes_of_the_training_set(labels):
    """Its rows may lack a class, or have but one."""
    counts = replace(numbered(6, [0.0, 1.0, 2.0, 0.0, 1.0, 5.0]), test=numbered(3, labels))
    read = counts.as_task("classification")
    assert read.test.signature == read.signature
    assert (read.test.y.tolist(), read.test.y.dtype) == ([int(label) for label in labels], np.int32)
    names = np.array(["lo", "mid", "high"])
    own = numbered(3, names[[2, 1, 2]])
    train, test = split(replace(numbered(6, np.tile(names, 2)), test=own), test_fraction=0.1, seed=0)
    assert train.class_names == test.class_names == ("high", "lo", "mid")
    assert test.y.tolist() == [0, 2, 0]
    with pytest.raises(UsageError, match="arrays: test rows: row 2: label 3 is not one of the model's 4 classes"):
        replace(counts, test=numbered(3, [1.0, 3.0, 1.0])).as_task("classification")


@pytest.mark.parametrize("test_fraction", [-0.1, 1.0, 1.5, float("nan")])
def test_bad_fractions(test_fraction):
    with pytest.raises(UsageError, match="test_fraction"):
        split(numbered(5), test_fraction=test_fraction, seed=0)


def test_too_few_rows():
    with pytest.raises(UsageError, match="arrays: test_fraction"):
        split(numbered(1), test_fraction=0.1, seed=0)


# ---------------------------------------------------------------------------------------------- scaler


def test_scaler_standardises_and_back():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)) * [1, 1e-3, 1e5] + [0, 5, -1e6]
    y = rng.normal(size=(200, 2)) * [2, 300] + [1, -1000]
    data = from_arrays(x, y)
    scaler = Scaler.fit(data, standardise=True)
    scaled = scaler.apply(data)
    assert scaled.x.dtype == scaled.y.dtype == np.float32
    np.testing.assert_allclose(scaled.x.astype(float).mean(axis=0), 0, atol=2e-3)
    np.testing.assert_allclose(scaled.x.std(axis=0, dtype=float), 1, rtol=1e-3)
    np.testing.assert_allclose(scaled.y.std(axis=0, dtype=float), 1, rtol=1e-5)
    np.testing.assert_allclose(scaler.unscale_targets(scaled.y), data.y, rtol=1e-4, atol=1e-4)
    draws = scaler.unscale_targets(np.zeros((7, 5, 2)))
    np.testing.assert_allclose(draws, np.broadcast_to(scaler.y_mean, (7, 5, 2)))


@pytest.mark.parametrize("size", [1e-36, 1e-38, 1e-40, 1e-42])
def test_scales_are_within_the_range_that_a_file_may_contain(size):
    values = size * np.arange(5.0)
    data = from_arrays(values, values, task="regression")
    if size < 1e-38:
        with pytest.raises(
            UsageError, match="the numbers differ by too little to be standardised in float32; rescale them"
        ):
            Scaler.fit(data, standardise=True)
        return
    Scaler.fit(data, standardise=True).check(data.signature)


def test_scaler_statistics():
    data = from_arrays([[1.0, 5.0], [3.0, 5.0]], [0.0, 4.0])
    scaler = Scaler.fit(data, standardise=True)
    for values, expected in (
        (scaler.x_mean, [2, 5]),
        (scaler.x_sd, [1, 1]),
        (scaler.y_mean, [2]),
        (scaler.y_sd, [2]),
    ):
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, expected)


def test_the_rows_of_a_density_are_scaled_as_inputs_and_as_targets():
    rows = load(np.array([[1.0, 5.0], [3.0, 5.0]]))
    scaler = Scaler.fit(rows, standardise=True)
    for mean, sd in ((scaler.x_mean, scaler.x_sd), (scaler.y_mean, scaler.y_sd)):
        assert (mean.tolist(), sd.tolist()) == ([2, 5], [1, 1])
    np.testing.assert_array_equal(scaler.apply(rows).y, [[-1, 0], [1, 0]])
    plain = Scaler.fit(rows, standardise=False)
    assert (plain.y_mean.tolist(), plain.y_sd.tolist()) == ([0, 0], [1, 1])


@pytest.mark.parametrize("constant", [0.1, 1e30, -3.3e-39, 1e-45])
def test_constant_columns_are_only_centred(constant):
    data = from_arrays(np.full((30, 1), constant), np.full(30, constant))
    scaler = Scaler.fit(data, standardise=True)
    assert scaler.x_sd == scaler.y_sd == 1
    np.testing.assert_array_equal(scaler.apply(data).x, 0)


def test_scaler_off_changes_nothing():
    data = from_arrays([[1.0, 5.0], [3.0, 5.0]], [0.0, 4.0])
    scaled = Scaler.fit(data, standardise=False).apply(data)
    np.testing.assert_array_equal(scaled.x, data.x)
    np.testing.assert_array_equal(scaled.y, data.y)


def test_scaler_leaves_labels_alone():
    data = from_arrays(np.arange(4.0), [0, 1, 1, 0])
    scaler = Scaler.fit(data, standardise=True)
    assert (scaler.y_mean.tolist(), scaler.y_sd.tolist()) == ([0], [1])
    assert scaler.apply(data).y is data.y


def test_scaler_of_images():
    images = np.random.default_rng(0).integers(0, 256, size=(1500, 3, 4), dtype=np.uint8)
    data = from_arrays(images, np.arange(1500) % 2)
    scaler = Scaler.fit(data, standardise=True)
    assert scaler.x_mean.shape == scaler.x_sd.shape == ()
    np.testing.assert_allclose(scaler.x_mean, images.mean(), rtol=1e-6)
    np.testing.assert_allclose(scaler.x_sd, images.std(), rtol=1e-6)
    assert scaler.scale_inputs(images) is images
    plain = Scaler.fit(data, standardise=False)
    assert (float(plain.x_mean), float(plain.x_sd)) == (0, 255)
    floats = from_arrays(images.astype(float), np.arange(1500) % 2)
    np.testing.assert_allclose(Scaler.fit(floats, standardise=True).x_sd, scaler.x_sd, rtol=1e-6)
    np.testing.assert_allclose(Scaler.fit(floats, standardise=True).apply(floats).x.std(), 1, rtol=1e-4)


def test_scaler_refuses_what_float32_cannot_hold():
    scaler = Scaler.fit(from_arrays([1e-30, 2e-30], [0.0, 1.0]), standardise=True)
    with pytest.raises(UsageError, match="standardised x: row 1, column 1"):
        scaler.scale_inputs(np.float32([[1e20]]))


# ---------------------------------------------------------------------------------------------- registered

NAMES = (
    *("linear_line", "mdn_sine", "mdn_branches", "mdn_bump", "mdn_hills", "tutorial_sine"),
    *("diabetes", "digits", "breast_cancer"),
)


@pytest.mark.parametrize("name", NAMES)
def test_registered_sets_are_the_same_every_time(name):
    first, second = getattr(registered, name)(), getattr(registered, name)()
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.y, second.y)
    assert first.name == name.replace("_", "-")
    assert first.x.dtype == (np.uint8 if name == "digits" else np.float32)


@pytest.mark.parametrize(
    ("name", "shape", "num_classes"),
    [
        ("linear_line", (100, 1), 0),
        ("tutorial_sine", (32, 1), 0),
        ("diabetes", (442, 10), 0),
        ("digits", (1797, 8, 8), 10),
        ("breast_cancer", (569, 30), 2),
    ],
)
def test_registered_shapes(name, shape, num_classes):
    data = getattr(registered, name)()
    assert (data.x.shape, data.num_classes, data.test) == (shape, num_classes, None)
    assert len(data.feature_names) == (shape[1] if len(shape) == 2 else 0)


def test_line_is_recovered():
    data = registered.linear_line()
    slope, intercept = np.polyfit(data.x[:, 0].astype(float), data.y[:, 0].astype(float), 1)
    assert abs(slope - 1) < 0.25
    assert abs(intercept - 0.5) < 0.25


def test_density_sets_hold_their_known_best_nll():
    """The true densities on the 5000 test points: their known values within five standard errors."""
    sine, branches, bump = registered.mdn_sine(), registered.mdn_branches(), registered.mdn_bump()
    for data in (sine, branches, bump):
        assert (data.num_data, data.test.num_data) == (600, 5000)
        assert not np.isin(data.test.x, data.x).all()
    x, y = sine.test.x.astype(float), sine.test.y.astype(float)
    sd = 0.1 + 0.3 * np.abs(x)
    nll = 0.5 * ((y - np.sin(3 * x)) / sd) ** 2 + np.log(sd) + 0.5 * np.log(2 * np.pi)
    assert abs(nll.mean() + 0.03525) < 5 * nll.std() / np.sqrt(5000)
    x, y = branches.test.x.astype(float), branches.test.y.astype(float)
    centre = 0.5 + 0.5 * x
    density = sum(np.exp(-0.5 * ((y - sign * centre) / 0.15) ** 2) for sign in (-1, 1)) / 2
    nll = -np.log(density / (0.15 * np.sqrt(2 * np.pi)))
    assert abs(nll.mean() - 0.09997) < 5 * nll.std() / np.sqrt(5000)
    x, y = bump.test.x.astype(float), bump.test.y.astype(float)
    sd = 0.2 + 0.1 * np.tanh(2 * (x - 1))
    nll = 0.5 * ((y - np.tanh(2 * (x + 1)) + np.tanh(2 * (x - 1)) + 1) / sd) ** 2 + np.log(sd) + 0.5 * np.log(2 * np.pi)
    assert abs(nll.mean() + 0.57052) < 5 * nll.std() / np.sqrt(5000)
    hills = registered.mdn_hills()
    assert (hills.num_data, hills.test.num_data) == (200_000, 5000)
    x, y = hills.test.x.astype(float), hills.test.y.astype(float)
    sd = 0.15 - 0.04 * np.tanh(3 * (x + 1.2)) + 0.05 * np.tanh(3 * (x - 0.4))
    nll = 0.5 * ((y - hills.truth(x)) / sd) ** 2 + np.log(sd) + 0.5 * np.log(2 * np.pi)
    assert abs(nll.mean() + 0.96743) < 5 * nll.std() / np.sqrt(5000)


def test_the_truth_of_synthetic_data_is_what_their_noise_is_about():
    for name, sd in (
        ("linear_line", lambda x: 0.5),
        ("tutorial_sine", lambda x: 1.0),
        ("mdn_sine", lambda x: 0.1 + 0.3 * np.abs(x)),
        ("mdn_bump", lambda x: 0.2 + 0.1 * np.tanh(2 * (x - 1))),
        ("mdn_branches", lambda x: 0.15),
        ("mdn_hills", lambda x: 0.15 - 0.04 * np.tanh(3 * (x + 1.2)) + 0.05 * np.tanh(3 * (x - 0.4))),
    ):
        data = getattr(registered, name)()
        x, y = data.x.astype(float), data.y.astype(float)
        residuals = y - data.truth(x)
        nearest = np.take_along_axis(residuals, np.abs(residuals).argmin(1)[:, None], 1)
        assert abs(np.mean((nearest / sd(x)) ** 2) - 1) < 4 * np.sqrt(2 / len(x)), name


def test_the_moons_face_one_another():
    """Each point is off the nearer half circle by the noise; the one about (0, 0) is the upper, the other the lower."""
    for data in (registered.two_moons(), registered.two_moons().test):
        assert data.feature_names == data.target_names == ("a", "b")
        off = np.stack([np.hypot(data.x[:, 0], data.x[:, 1]), np.hypot(data.x[:, 0] - 1, data.x[:, 1] - 0.5)], 1) - 1
        lower = np.abs(off).argmin(1)
        assert 0.08 < np.abs(off).min(1).std() / np.sqrt(1 - 2 / np.pi) < 0.11
        for number, height in ((0, 2 / np.pi), (1, 0.5 - 2 / np.pi)):
            assert abs(data.x[lower == number, 1].mean() - height) < 0.2


def test_breast_cancer_labels_have_their_meaning():
    data = registered.breast_cancer()
    assert (data.target_names, data.class_names, data.y.sum()) == (("benign",), ("0", "1"), 357)


def test_digits_use_the_full_range_of_a_byte():
    data = registered.digits()
    assert (data.x.min(), data.x.max(), len(np.unique(data.x))) == (0, 255, 17)


@pytest.mark.parametrize("seed", range(12))
def test_a_class_with_one_row_is_learned_from(seed):
    labels = np.array(["p"] * 194 + ["q"] * 5 + ["z"])
    train, test = split(numbered(200, labels), test_fraction=0.1, seed=seed)
    assert np.bincount(train.y, minlength=3).tolist() in ([175, 4, 1], [174, 5, 1], [176, 3, 1])
    assert np.bincount(test.y, minlength=3)[2] == 0
    assert len(test.y) == 20


def test_numbers_that_float32_cannot_be_divided_by():
    with pytest.raises(UsageError, match="targets: the numbers differ by too little to be standardised in float32"):
        Scaler.fit(from_arrays(np.arange(9.0), np.arange(9.0) * 1e-40 + 1e-39), True)
