"""Orders, splits, wrong labels and augmentation: functions of their keys, against slow twins."""

import math
import zlib

import pytest
import torch
from torch import Tensor

from vasso.lab.data import Augmentation, order, splitmix, validation_split, wrong_labels
from vasso.lab.data.augment import random_windows
from vasso.lab.data.images import stratified
from vasso.lab.data.label_noise import CIFAR10

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
MASK = 2**64 - 1


def slow_mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_mix_is_splitmix64() -> None:
    x = torch.tensor([0, 1, -1, 2**62, -(2**63), 123456789])
    assert [v % 2**64 for v in splitmix.mix(x).tolist()] == [
        slow_mix(v % 2**64) for v in x.tolist()
    ]


def test_draws_are_uniform_and_independent_between_keys() -> None:
    n = 40_000
    index = torch.arange(n)
    draws = torch.stack([
        splitmix.uniform(p, s, e, index) for p in "ab" for s in (0, 1) for e in (0, 1)
    ])
    assert draws.min() >= 0
    assert draws.max() < 1
    cells = (draws * 16).long().flatten().bincount(minlength=16).double()
    expected = draws.numel() / 16
    chi2 = ((cells - expected) ** 2 / expected).sum().item()
    assert chi2 < 37.7  # 15 degrees of freedom: one seed in a thousand is above
    correlation = torch.corrcoef(draws) - torch.eye(8)
    assert correlation.abs().max() < 5 / math.sqrt(n)
    neighbours = torch.corrcoef(torch.stack((draws[0, 1:], draws[0, :-1])))[0, 1]
    assert neighbours.abs() < 5 / math.sqrt(n)


def test_seeds_of_any_size_are_taken() -> None:
    seen = {splitmix.bits("x", seed).item() for seed in (-1, 0, 2**31, 2**63, 2**64 + 5, -(2**62))}
    assert len(seen) == 6


def test_orders_are_permutations_that_differ_by_seed_and_epoch() -> None:
    orders = [order(500, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for one in orders:
        assert torch.equal(one.sort().values, torch.arange(500))
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (one == other).sum() < 10  # one on average


def test_orders_do_not_change_between_versions() -> None:
    keys = []
    for index in range(8):
        x = slow_mix(zlib.crc32(b"order"))
        for key in (1, 2, index):
            x = slow_mix((x + key) & MASK)
        keys.append(x - 2**64 if x >= 2**63 else x)
    assert order(8, seed=1, epoch=2).tolist() == sorted(range(8), key=keys.__getitem__)


def test_every_place_is_equally_likely_for_an_image() -> None:
    places = torch.stack([order(5, seed, 0) for seed in range(4000)])
    counts = torch.stack([places[:, k].bincount(minlength=5) for k in range(5)]).double()
    assert ((counts - 800) ** 2 / 800).sum() < 39.3  # 16 degrees of freedom, one in a thousand


@pytest.mark.parametrize("size", [1, 37, 100, 199])
def test_a_split_is_a_partition_in_which_classes_keep_their_share(size: int) -> None:
    y = torch.tensor([0] * 100 + [1] * 60 + [2] * 40)[splitmix.permutation(200, "test", 0)]
    train, validation = validation_split(y, size, seed=4)
    assert torch.equal(torch.cat((train, validation)).sort().values, torch.arange(200))
    assert len(validation) == size
    shares = y[validation].bincount(minlength=3) - torch.tensor([0.5, 0.3, 0.2]) * size
    assert shares.abs().max() < 1
    assert not torch.equal(validation, validation_split(y, size, seed=5)[1])


def test_the_largest_remainders_give_one_more() -> None:
    y = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)  # shares of 3 images: 1.5, 0.9 and 0.6
    assert y[stratified(y, 3, seed=0)].tolist() == [0, 1, 2]


def test_a_split_may_miss_classes_that_have_no_images() -> None:
    assert stratified(torch.tensor([0, 2, 2, 0]), 2, seed=0).shape == (2,)


@pytest.mark.parametrize("size", [0, 10, 11, -1])
def test_impossible_splits_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="ask for 1 to 9"):
        validation_split(torch.zeros(10, dtype=torch.int64), size, seed=0)


LABELS = torch.arange(10).repeat(500)


@pytest.mark.parametrize("rate", [0, 0.25, 0.3333, 0.75, 1])
def test_other_labels_are_wrong_exactly_as_often_as_asked(rate: float) -> None:
    y = LABELS.clone()
    labels, share = wrong_labels(y, rate, 10, seed=1)
    assert torch.equal(y, LABELS)
    assert int((labels != y).sum()) == round(rate * 5000)
    assert share == round(rate * 5000) / 5000
    assert labels.dtype == torch.int64


def test_other_labels_are_uniform_over_the_others() -> None:
    labels, _ = wrong_labels(LABELS, 1, 10, seed=1)
    moved = ((labels - LABELS) % 10).bincount(minlength=10)
    assert moved[0] == 0
    chi2 = ((moved[1:] - 5000 / 9) ** 2 / (5000 / 9)).sum()
    assert chi2 < 26.1  # 8 degrees of freedom, one in a thousand


def test_all_labels_may_stay_true() -> None:
    labels, share = wrong_labels(LABELS, 0.75, 10, kind="all", seed=1)
    assert share == (labels != LABELS).double().mean().item()
    assert abs(share - 0.675) < 5 * math.sqrt(0.75 * 0.1 * 0.9 / 5000)


def test_asymmetric_labels_follow_the_customary_pairs() -> None:
    labels, share = wrong_labels(LABELS, 1, 10, kind="asymmetric", seed=1)
    expected = torch.tensor([0, 1, 0, 5, 7, 3, 6, 7, 8, 1])  # airplane automobile bird cat ...
    assert torch.equal(labels, expected[LABELS])
    assert share == len(CIFAR10) / 10


def test_asymmetric_labels_of_other_sets_are_the_next_class_or_as_told() -> None:
    y = torch.arange(4)
    assert wrong_labels(y, 1, 4, kind="asymmetric", seed=0)[0].tolist() == [1, 2, 3, 0]
    result = wrong_labels(y, 1, 4, kind="asymmetric", seed=0, mistaken_for={1: 3})[0]
    assert result.tolist() == [0, 3, 2, 3]
    with pytest.raises(ValueError, match="1: 4, outside the 4 classes"):
        wrong_labels(y, 1, 4, kind="asymmetric", seed=0, mistaken_for={1: 4})


def test_the_seed_draws_the_images() -> None:
    first, again, other = (wrong_labels(LABELS, 0.5, 10, seed=s)[0] for s in (1, 1, 2))
    assert torch.equal(first, again)
    both = ((first != LABELS) & (other != LABELS)).double().mean().item()
    assert abs(both - 0.25) < 0.05


def test_senseless_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="Did you mean 'asymmetric'"):
        wrong_labels(LABELS, 0.5, 10, kind="asymetric", seed=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        wrong_labels(LABELS, 1.5, 10, seed=0)
    with pytest.raises(ValueError, match="0 to 9, outside the 5 classes"):
        wrong_labels(LABELS, 0.5, 5, seed=0)


def pictures(n: int, size: int = 12, channels: int = 3) -> Tensor:
    draw = torch.Generator().manual_seed(n)
    return torch.randint(0, 256, (n, channels, size, size), generator=draw, dtype=torch.uint8)


def one_number(purpose: str, seed: int, epoch: int, index: int) -> float:
    return splitmix.uniform(purpose, seed, epoch, torch.tensor(index)).item()


def slow_image(x: Tensor, how: Augmentation, seed: int, epoch: int, index: int) -> Tensor:
    key = (seed, epoch, index)
    channels, height, width = x.shape
    window = 2 * how.crop + 1
    dy = int(one_number("crop y", *key) * window) - how.crop
    dx = int(one_number("crop x", *key) * window) - how.crop
    mirrored = how.flip and one_number("flip", *key) < 0.5
    cut = how.cutout and one_number("cutout", *key) < how.cutout_probability
    cy = int(one_number("cutout y", *key) * height) - how.cutout // 2
    cx = int(one_number("cutout x", *key) * width) - how.cutout // 2
    result = torch.empty(x.shape)
    for r in range(height):
        for c in range(width):
            column = width - 1 - c if mirrored else c
            at = (r + dy, column + dx)
            inside = 0 <= at[0] < height and 0 <= at[1] < width
            hole = cut and cy <= r < cy + how.cutout and cx <= c < cx + how.cutout
            for k in range(channels):
                raw = x[k, at[0], at[1]].float() if inside else torch.tensor(0.0)
                pixel = (raw / 255 - torch.tensor(MEAN[k])) / torch.tensor(STD[k])
                result[k, r, c] = 0.0 if hole else pixel
    return result


@pytest.mark.parametrize(
    "how",
    [
        Augmentation(),
        Augmentation(crop=2),
        Augmentation(flip=True),
        Augmentation(cutout=5),
        Augmentation(crop=4, flip=True, cutout=6, cutout_probability=0.5),
    ],
    ids=str,
)
def test_a_batch_is_its_images_one_by_one(how: Augmentation) -> None:
    x, index = pictures(10), torch.arange(10) * 7
    batch = how(x, index, seed=3, epoch=2, mean=MEAN, std=STD)
    assert batch.dtype == torch.float32
    slow = [slow_image(x[i], how, 3, 2, int(index[i])) for i in range(10)]
    assert torch.equal(batch, torch.stack(slow))


ALL = Augmentation(crop=4, flip=True, cutout=6, cutout_probability=0.5)
RESIZED = Augmentation(resized_crop=16, flip=True, cutout=4)


@pytest.mark.parametrize("how", [ALL, RESIZED], ids=str)
def test_an_image_comes_out_the_same_in_any_batch_and_order(how: Augmentation) -> None:
    x = pictures(37)
    settings = {"seed": 1, "epoch": 5, "mean": MEAN, "std": STD}
    whole = how(x, torch.arange(37), **settings)
    shuffled = order(37, 9, 9)
    assert torch.equal(how(x[shuffled], shuffled, **settings), whole[shuffled])
    alone = [how(x[i : i + 1], torch.tensor([i]), **settings)[0] for i in range(37)]
    assert torch.equal(torch.stack(alone), whole)


@pytest.mark.parametrize("how", [ALL, RESIZED], ids=str)
@pytest.mark.parametrize("other", [{"seed": 2}, {"epoch": 6}])
def test_seed_and_epoch_change_the_draws(how: Augmentation, other: dict[str, int]) -> None:
    x, index = pictures(20), torch.arange(20)
    settings = {"seed": 1, "epoch": 5, "mean": MEAN, "std": STD}
    first = how(x, index, **settings)
    second = how(x, index, **(settings | other))
    same = [torch.equal(a, b) for a, b in zip(first, second, strict=True)]
    assert sum(same) <= 2


def test_draws_are_as_frequent_as_asked() -> None:
    n = 2000
    x = torch.zeros(n, 1, 6, 6, dtype=torch.uint8)
    x[:, :, :, 0] = 255  # the left column
    grey = {"seed": 0, "epoch": 0, "mean": (0.5,), "std": (0.5,)}
    flipped = Augmentation(flip=True)(x, torch.arange(n), **grey)[:, 0, 0, 5] > 0
    assert abs(flipped.double().mean().item() - 0.5) < 5 * 0.5 / math.sqrt(n)
    holes = Augmentation(cutout=2, cutout_probability=0.3)(x, torch.arange(n), **grey) == 0
    assert abs(holes.flatten(1).any(1).double().mean().item() - 0.3) < 5 * 0.5 / math.sqrt(n)


def test_a_resized_crop_is_torchs_interpolation_of_its_window() -> None:
    x, index = pictures(12, size=20), torch.arange(12)
    out = Augmentation(resized_crop=24)(x, index, seed=0, epoch=0, mean=MEAN, std=STD)
    windows = zip(*random_windows(20, 20, 0, 0, index), strict=True)
    for i, (top, left, h, w) in enumerate(windows):
        part = x[i : i + 1, :, top : top + h, left : left + w].float()
        big = torch.nn.functional.interpolate(part, (24, 24), mode="bilinear")
        scale = torch.tensor(STD)[:, None, None] * 255
        shift = torch.tensor(MEAN)[:, None, None] * 255
        torch.testing.assert_close(out[i], ((big - shift) / scale)[0], atol=1e-4, rtol=1e-4)


def test_windows_have_areas_and_shapes_in_range() -> None:
    top, left, h, w = random_windows(60, 90, 0, 0, torch.arange(3000))
    assert top.min() >= 0
    assert left.min() >= 0
    assert (top + h).max() <= 60
    assert (left + w).max() <= 90
    area, ratio = (h * w).double() / 5400, w.double() / h
    assert area.min() > 0.07  # 8 % but for whole pixels
    assert ratio.min() > 0.72
    assert ratio.max() < 1.39
    assert len(set(zip(h.tolist(), w.tolist(), strict=True))) > 500


def test_a_very_long_image_is_cut_to_its_middle() -> None:
    top, left, h, w = random_windows(4, 1000, 0, 0, torch.arange(50))
    fallback = h == 4
    assert fallback.any()
    assert set(w[fallback].tolist()) == {5}
    assert set(left[fallback].tolist()) == {497}
    assert not top[fallback].any()


def test_senseless_augmentation_is_refused() -> None:
    with pytest.raises(ValueError, match="crop must be 0 or more pixels, got -1"):
        Augmentation(crop=-1)
    with pytest.raises(ValueError, match="exclude each other"):
        Augmentation(crop=4, resized_crop=32)
    with pytest.raises(ValueError, match="cutout_probability must be between 0 and 1, got 2"):
        Augmentation(cutout_probability=2)
    settings = {"seed": 0, "epoch": 0, "mean": MEAN, "std": STD}
    with pytest.raises(TypeError, match="must be uint8"):
        Augmentation()(pictures(2).float(), torch.arange(2), **settings)
    with pytest.raises(ValueError, match="one index each"):
        Augmentation()(pictures(2), torch.arange(3), **settings)
    with pytest.raises(ValueError, match="as many means"):
        Augmentation()(pictures(2, channels=1), torch.arange(2), **settings)
    with pytest.raises(ValueError, match="load them with size=8"):
        Augmentation(resized_crop=8)(pictures(2), torch.arange(2), **settings)
