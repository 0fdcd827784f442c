"""Networks: sizes as published, shapes, seeds."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from vasso.lab.models import MODELS, build

PUBLISHED = {  # name, classes, size, channels: weights
    ("resnet18", 10, 32, 3): 11_173_962,
    ("resnet34", 10, 32, 3): 21_282_122,
    ("resnet50", 1000, 224, 3): 25_557_032,
    ("wrn28_10", 10, 32, 3): 36_479_194,
    ("wrn28_10", 100, 32, 3): 36_536_884,
    ("pyramidnet110", 10, 32, 3): 28_485_477,
    ("vit_s32", 1000, 224, 3): 22_878_952,
}
BY_HAND = {
    ("vgg11_bn", 10, 32, 3): 9_220_480 + 2 * 2752 + 513 * 4096 + 4097 * 4096 + 4097 * 10,
    ("resnet8", 10, 16, 3): 928 + 18_560 + 57_728 + 230_144 + 1290,
    ("resnet8_s4", 10, 32, 3): 928 + 9_280 + 18_560 + 57_728 + 230_144 + 1290,
    ("mlp", 10, 28, 1): 785 * 512 + 1024 + 513 * 512 + 1024 + 513 * 10,
}
SMALL = {"vgg11_bn": 0.05, "wrn28_10": 0.05, "pyramidnet110": 0.25}
SIZES = {"vit_s32": 64, "vit_s8": 16, "vit_s4": 8}


def weights(name: str, **settings: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(name, seed=None, **settings).parameters())


@pytest.mark.parametrize(("which", "count"), {**PUBLISHED, **BY_HAND}.items())
def test_full_size_networks_have_the_published_number_of_weights(which: tuple, count: int) -> None:
    name, classes, size, channels = which
    assert weights(name, classes=classes, size=size, channels=channels) == count


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "classes"), [(3, 7), (1, 10)])
def test_narrow_networks_learn_in_every_weight(name: str, channels: int, classes: int) -> None:
    size = SIZES.get(name, 16)
    net = build(
        name, classes=classes, width=SMALL.get(name, 0.125), channels=channels, size=size, seed=0
    )
    if name.startswith("vit"):  # its head starts at 0 and would pass no gradient back
        torch.nn.init.normal_(net.head.weight)
    x = torch.randn(4, channels, size, size)
    scores = net(x)
    assert scores.shape == (4, classes)
    cross_entropy(scores, torch.arange(4)).backward()
    dead = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    still = [n for n, p in net.named_parameters() if not p.grad.any() and not n.endswith("bias")]
    assert not dead
    assert not still


@pytest.mark.parametrize("name", MODELS)
def test_width_keeps_the_layers_and_their_order(name: str) -> None:
    size = 224 if name == "vit_s32" else 32
    with torch.device("meta"):
        whole = build(name, classes=10, size=size, seed=None)
        narrow = build(name, classes=10, size=size, width=0.25, seed=None)
    assert [(n, type(m)) for n, m in whole.named_modules()] == [
        (n, type(m)) for n, m in narrow.named_modules()
    ]
    smaller = sum(p.numel() for p in narrow.parameters())
    assert smaller < sum(p.numel() for p in whole.parameters()) / 3


@pytest.mark.parametrize("name", ["resnet18", "wrn28_10", "pyramidnet110", "vgg11_bn", "resnet8"])
@pytest.mark.parametrize("size", [8, 17, 40])
def test_convolutional_networks_take_images_of_any_size(name: str, size: int) -> None:
    net = build(name, classes=5, width=0.1, size=size, seed=0).eval()
    assert net(torch.randn(2, 3, size, size)).isfinite().all()


def test_weights_depend_on_the_seed_alone() -> None:
    before = torch.get_rng_state()
    first = build("resnet8", classes=10, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    again, other = build("resnet8", classes=10, seed=3), build("resnet8", classes=10, seed=4)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_seeded_weights_do_not_hang_on_the_current_device() -> None:
    with torch.device("meta"):
        net = build("mlp", classes=10, seed=3)
    assert torch.equal(net[1].weight, build("mlp", classes=10, seed=3)[1].weight)


def test_without_a_seed_weights_come_from_torchs_generator() -> None:
    torch.manual_seed(5)
    first = build("mlp", classes=10, seed=None)
    second = build("mlp", classes=10, seed=None)
    torch.manual_seed(5)
    third = build("mlp", classes=10, seed=None)
    assert torch.equal(first[1].weight, third[1].weight)
    assert not torch.equal(first[1].weight, second[1].weight)


def test_the_shortcut_of_a_pyramid_pads_with_zeros_and_halves_by_averages() -> None:
    from vasso.lab.models.pyramid import Block

    block = Block(3, 5, 2).eval()
    for parameter in block.body[-1].parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(2, 3, 4, 4)
    y = block(x)
    means = x.view(2, 3, 2, 2, 2, 2).mean((3, 5))
    torch.testing.assert_close(y[:, :3], means)
    assert not y[:, 3:].any()


def test_the_shortcut_of_a_wide_block_starts_after_the_activation() -> None:
    from vasso.lab.models.resnet import WideBlock

    block, x = WideBlock(3, 5, 2).eval(), torch.randn(2, 3, 4, 4)
    torch.nn.init.zeros_(block.second.weight)
    torch.testing.assert_close(block(x), block.shortcut(torch.relu(block.first_norm(x))))
    same = WideBlock(3, 3, 1).eval()
    torch.nn.init.zeros_(same.second.weight)
    assert torch.equal(same(x), x)


def test_the_class_token_tells_the_class() -> None:
    net = build("vit_s4", classes=3, width=0.05, size=8, seed=0)
    torch.nn.init.normal_(net.head.weight)
    x = torch.randn(2, 3, 8, 8)
    mixed = net(x)
    assert not torch.allclose(mixed[0], mixed[1])
    net.blocks = torch.nn.Identity()  # the token learns nothing of the image
    alone = net(x)
    torch.testing.assert_close(alone[0], alone[1])
    expected = net.head(net.norm(net.token[0] + net.positions[0, :1]))
    torch.testing.assert_close(alone[:1], expected)


def test_attention_is_softmax_of_scaled_products() -> None:
    from vasso.lab.models.vit import HEADS, Attention

    attention = Attention(12).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    q, k, v = attention.inputs(x).chunk(3, -1)
    heads = []
    for h in range(HEADS):
        part = slice(2 * h, 2 * h + 2)
        shares = (q[..., part] @ k[..., part].mT / 2**0.5).softmax(-1)
        heads.append(shares @ v[..., part])
    torch.testing.assert_close(attention(x), attention.output(torch.cat(heads, -1)))


def test_unknown_names_and_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="Did you mean 'resnet"):
        build("resnet1", classes=10, seed=0)
    with pytest.raises(ValueError, match="width must be above 0, got 0"):
        build("mlp", classes=10, width=0, seed=0)
    with pytest.raises(ValueError, match="cannot be cut into patches of 32x32"):
        build("vit_s32", classes=10, size=40, seed=0)
