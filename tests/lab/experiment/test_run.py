"""Runs: frozen values with ids that stay, and settings that are checked before anything starts."""

import re
from typing import Any

import pytest

import vasso
from vasso.lab.experiment.method import MethodConfig, trainable
from vasso.lab.experiment.rates import LearningRate
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.experiment.user_functions import import_function
from vasso.lab.store.store import _ID

SENTENCES = {"data": "multi30k", "model": "transformer-small"}


def test_ids_are_those_of_earlier_versions() -> None:
    """A new setting must not rename old runs: its default leaves the id as it was."""
    assert Run(Task(), MethodConfig()).id == "digits-mlp-sgd-s0-ff940e87a0"
    run = Run.of({
        "task": {"data": "cifar10", "model": "resnet8", "wrong": 0.75},
        "method": {"name": "VaSSO", "rho": 0.1, "theta": 0.2, "weight_decay": 1e-3},
        "seed": 2,
    })
    assert run.id == "cifar10-resnet8-vasso-rho-0.1-theta-0.2-s2-341d2d1faf"


def test_what_a_default_is_does_not_change_the_id_nor_does_the_order() -> None:
    one = Run.of({"task": {"epochs": 20, "batch": 64}, "method": {"name": "SAM", "rho": 0.1}})
    other = Run.of({"method": {"rho": 0.1, "name": "sam", "lr": 0.05}, "task": {"batch": 64}})
    assert one.id == other.id
    assert one == other
    assert one.changed({"rho": 1}).id == one.changed({"rho": 1.0}).id


@pytest.mark.parametrize(
    "change", [{"epochs": 21}, {"wrong": 0.1}, {"rho": 0.2}, {"lr": 0.06}, {"seed": 1}]
)
def test_every_setting_is_in_the_id(change: dict[str, Any]) -> None:
    run = Run.of({"method": {"name": "SAM", "rho": 0.1}})
    assert run.changed(change).id != run.id


@pytest.mark.parametrize("name", trainable())
def test_ids_are_names_of_directories(name: str) -> None:
    run = Run(Task(data="my.data:<script>", model="../../etc:passwd"), MethodConfig(name), seed=7)
    assert _ID.fullmatch(run.id)
    assert ".." not in run.id
    assert len(run.id) < 150


@pytest.mark.parametrize("name", ["plain", *trainable()])
def test_tables_give_the_run_back(name: str) -> None:
    run = Run(Task.of({"wrong": 0.5}), MethodConfig(name, average_from=0.5), seed=3)
    assert Run.of(run.as_table()) == run
    assert Run.of(run.in_full()) == run


def test_a_base_is_a_method_by_its_name() -> None:
    assert MethodConfig.of({"name": "adamw"}) == MethodConfig(base="AdamW")
    assert MethodConfig.of({"name": "SGD"}).label == "SGD"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"task": {"data": "cifar11"}}, "no data is called 'cifar11'. Did you mean 'cifar10'?"),
        ({"task": {"model": "resnet19"}}, "no model is called 'resnet19'. Did you mean 'resnet1"),
        ({"task": {"loss": "hinge"}}, "no loss is called 'hinge'"),
        ({"task": {"epoch": 3}}, "has no setting 'epoch'. Did you mean 'epochs'?"),
        ({"task": {"epochs": 0}}, "epochs must be at least 1, got 0"),
        ({"task": {"epochs": 2.5}}, "epochs must be a whole number, got 2.5"),
        ({"task": {"wrong": 1.5}}, "wrong must be at least 0 and at most 1, got 1.5"),
        ({"task": {"wrong_kind": "others"}}, "got 'others'. Did you mean 'other'?"),
        ({"task": {"crop": -1}}, "crop must be 0 or more pixels, got -1"),
        ({"task": {"precision": "16"}}, "precision must be one of"),
        ({"task": {"others": -1}}, "others"),
        ({"task": {"data": "multi30k", "model": "resnet8"}}, "sentences, which resnet8 cannot"),
        ({"task": {"model": "transformer-small"}}, "are images, which transformer-small cannot"),
        ({"task": {"pieces": 4000}}, "pieces has no effect on images"),
        ({"task": {**SENTENCES, "wrong": 0.5}}, "wrong has no effect on sentences"),
        ({"method": {"name": "VaSO"}}, "no method is called 'VaSO'. Did you mean 'VaSSO'?"),
        ({"method": {"name": "SAM", "rh": 1}}, "SAM has no setting 'rh'. Did you mean 'rho'?"),
        ({"method": {"name": "SGD", "rho": 1}}, "the plain base has no setting 'rho'."),
        ({"method": {"name": "SGD", "theta": 1}}, "the plain base has no setting 'theta'."),
        ({"method": {"name": "Friendly-SAM", "theta": 0.4}}, "Friendly-SAM takes no theta: its"),
        ({"method": {"name": "SAM", "rho": -1}}, "rho must be at least 0, got -1"),
        ({"method": {"name": "VaSSO", "theta": 2}}, "theta must be above 0 and at most 1, got 2"),
        ({"method": {"name": "SAM", "rho": "big"}}, "rho must be a number or a schedule"),
        ({"method": {"name": "LookSAM", "k": 0}}, "k must be"),
        ({"method": {"lr": -0.1}}, "lr must be at least 0, got -0.1"),
        ({"method": {"schedule": "cosin"}}, "Did you mean 'cosine'?"),
        ({"method": {"name": "SAMPa", "base": "AdamW"}}, "torch.optim.SGD only, not of AdamW"),
        ({"method": {"name": "SGD", "same_rng": True}}, "same_rng is for methods that take two"),
        ({"method": {"name": "GSAM", "rho": "linear(1)"}}, "is not a schedule"),
        ({"method": {"name": "GSAM", "rho": "liner(1, 2, 3)"}}, "Did you mean 'linear'?"),
        ({"method": {"name": "GSAM", "rho": "linear(__import__('os'), 1, 2)"}}, "not a schedule"),
        ({"method": {"name": "late phase", "start": 1.5}}, "start must be a step or a share"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Run.of(table)


def test_a_change_of_a_setting_that_is_not_there_says_which_there_are() -> None:
    run = Run.of({"method": {"name": "VaSSO"}})
    with pytest.raises(ValueError, match=r"no setting 'tetha'\. Did you mean 'theta'"):
        run.changed({"tetha": 0.1})
    assert run.changed({"task.epochs": 3, "method.theta": 0.1, "seed": 4}).seed == 4


def test_a_schedule_in_words_is_that_schedule() -> None:
    method = MethodConfig.of({"name": "GSAM", "rho": "proportional_to_lr(0.6, 0.0, lr_high=0.1)"})
    model = vasso.lab.models.build("mlp", classes=2, channels=1, size=2, seed=0)
    opt = method.build(model, total=10)
    opt.param_groups[0]["lr"] = 0.05
    assert opt._groups.current()[0]["rho"] == pytest.approx(0.3)


def test_settings_in_steps_follow_the_length_of_the_run() -> None:
    model = vasso.lab.models.build("mlp", classes=2, channels=1, size=2, seed=0)
    assert (
        MethodConfig.of({"name": "late phase", "start": 0.8}).build(model, 200).policy.start == 160
    )
    assert MethodConfig.of({"name": "late phase", "start": 30}).build(model, 200).policy.start == 30
    assert MethodConfig.of({"name": "AE-SAM"}).build(model, 321).policy.total == 321


def test_cosine_per_epoch_is_constant_within_an_epoch_and_ends_at_its_end() -> None:
    rate = LearningRate("cosine", 0.1, total=40, per_epoch=10)
    assert [rate(step) for step in (0, 9)] == [0.1, 0.1]
    assert rate(20) == pytest.approx(0.05)
    assert LearningRate("cosine", 0.1, total=40, lr_end=0.02)(40) == pytest.approx(0.02)


def test_warm_up_is_a_line_and_what_follows_starts_at_the_top() -> None:
    for schedule in ("constant", "cosine", "linear", "inverse-sqrt"):
        rate = LearningRate(schedule, 1.0, total=100, warm_up=4)
        assert [rate(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert LearningRate("inverse-sqrt", 1.0, total=100, warm_up=4)(16) == 0.5
    assert LearningRate("linear", 1.0, total=104, warm_up=4)(54) == pytest.approx(0.5)


def test_a_function_of_the_user_that_is_not_there_says_where_was_looked() -> None:
    with pytest.raises(ValueError, match="No module named 'nowhere'; looked in"):
        import_function("nowhere:data")
    with pytest.raises(ValueError, match="the module math has no 'sqroot'"):
        import_function("math:sqroot")


@pytest.mark.parametrize("name", trainable())
def test_a_method_has_the_name_of_the_catalogue_and_that_of_its_class(name: str) -> None:
    assert MethodConfig.of({"name": name.upper()}).name == name
    build = vasso.methods()[name].build
    if isinstance(build, type):
        other = MethodConfig.of({"name": build.__name__}).name
        assert vasso.methods()[other].build is build


def test_the_name_of_a_class_is_the_first_of_its_methods() -> None:
    assert MethodConfig.of({"name": "msam", "rho": 0.3}).name == "Momentum-SAM"
    assert MethodConfig.of({"name": "SAM"}).name == "SAM"
    assert MethodConfig.of({"name": "NoisySAM"}).name == "noisy SAM (relative)"
