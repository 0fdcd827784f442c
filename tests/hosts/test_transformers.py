"""transformers' Trainer with our mixin is a plain loop, bit for bit."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.hosts import windows
from tests.hosts.problem import on_two_ranks
from tests.hosts.windows import batches, collate, in_windows, lines, weights
from vasso import (
    ASAM,
    ESAM,
    MSAM,
    SAM,
    BiLoRA,
    FlatLoRA,
    LookSAM,
    PreconditionedSAM,
    SAMPa,
    SharpnessAware,
    VaSSO,
)
from vasso.integrations.factories import Recipe
from vasso.integrations.transformers import (
    FunctionalMixin,
    SharpnessAwareMixin,
    SharpnessAwareTrainer,
)

RHO, THETA = 0.1, 0.4  # far enough that a lost second pass is seen at once


class PlainInOrder(Trainer):
    """Takes the samples as they come, so that a plain loop can."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class InOrder(SharpnessAwareMixin, PlainInOrder):
    """The same with our mixin."""


def gpt(dropout: float = 0.0) -> GPT2LMHeadModel:
    rates = {f"{where}_pdrop": dropout for where in ("attn", "embd", "resid")}
    small = {"vocab_size": 64, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = GPT2Config(**small, **rates, bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20231107)
        return GPT2LMHeadModel(config)


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    settings = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "max_grad_norm": 0.0,
    }
    return TrainingArguments(output_dir=str(folder), **{**settings, **more})


def logged(trainer: Trainer, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def windows_of(
    model: nn.Module, samples: list[Any], accumulate: int, *, by_tokens: bool, bf16: bool = False
) -> list[windows.Passes]:
    """Forward and backward of each micro-batch, its loss scaled as the Trainer promises to."""

    def one_pass(batch: windows.Batch, window: list[windows.Batch]) -> Tensor:
        tokens = sum((b["labels"] != -100).sum() for b in window)  # GPT2's first ones included
        more = {"num_items_in_batch": tokens} if by_tokens else {}
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**batch, **more)["loss"].float()
        loss = loss if by_tokens else loss / len(window)
        loss.backward()
        return loss.detach()

    return [
        [partial(one_pass, batch, window) for batch in window]
        for window in in_windows(batches(samples, 2), accumulate)
    ]


@pytest.mark.parametrize("accumulate", [1, 2, 4, 5])
@pytest.mark.parametrize("more", [{}, {"max_grad_norm": 0.3}, {"bf16": True}], ids=str)
@pytest.mark.parametrize("by_tokens", [True, False], ids=["tokens", "mean"])
def test_the_trainer_is_a_plain_loop_bit_for_bit(
    tmp_path: Path, accumulate: int, more: dict[str, Any], by_tokens: bool
) -> None:
    make, samples = gpt if by_tokens else windows.characters, lines(22)
    args = arguments(tmp_path, gradient_accumulation_steps=accumulate, **more)
    theirs, ours = make(), make()
    trainer = InOrder(
        theirs, args, train_dataset=samples, data_collator=collate, rho=RHO, theta=THETA
    )
    trainer.train()
    base = AdamW(windows.decay_groups(ours, 0.1), lr=1e-2, fused=True)
    opt = VaSSO(base, rho=RHO, theta=THETA)
    passes = windows_of(ours, samples, accumulate, by_tokens=by_tokens, bf16="bf16" in more)
    clip = more.get("max_grad_norm")
    losses = windows.plain_loop(opt, passes, clip=clip, params=list(ours.parameters()))
    assert torch.equal(weights(theirs), weights(ours))
    assert logged(trainer) == pytest.approx(losses, rel=1e-6)  # at w, not above
    assert trainer.sharpness_aware.cost == 2 * len(passes)


def trained(
    tmp_path: Path,
    *,
    kind: Any = InOrder,
    model: nn.Module | None = None,
    samples: int = 14,
    args: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """A trainer of this kind after its training, in windows of two micro-batches."""
    given = arguments(tmp_path, gradient_accumulation_steps=2, **(args or {}))
    data = {"train_dataset": lines(samples), "data_collator": collate}
    trainer = kind(model or windows.characters(), given, **data, **more)
    trainer.train()
    return trainer


@pytest.mark.parametrize("wrapped", [True, False], ids=["ours", "a base to wrap"])
def test_an_optimizer_can_be_given(tmp_path: Path, wrapped: bool) -> None:
    model, twin = windows.characters(), windows.characters()
    base = SGD(model.parameters(), lr=0.5, momentum=0.9)
    given = VaSSO(base, rho=RHO, theta=THETA) if wrapped else base
    settings = {} if wrapped else {"rho": RHO, "theta": THETA}
    trainer = trained(tmp_path, model=model, optimizers=(given, None), **settings)
    assert trainer.sharpness_aware.base is base
    opt = VaSSO(SGD(twin.parameters(), lr=0.5, momentum=0.9), rho=RHO, theta=THETA)
    passes = windows_of(twin, lines(14), 2, by_tokens=False)
    windows.plain_loop(opt, passes, clip=None, params=[])
    assert torch.equal(weights(model), weights(twin))


def test_settings_beside_an_optimizer_that_has_its_own_are_an_error(tmp_path: Path) -> None:
    model = windows.characters()
    opt = VaSSO(SGD(model.parameters(), lr=0.5))
    with pytest.raises(ValueError, match=r"'rho': 0.3.* give them to VaSSO"):
        InOrder(model, arguments(tmp_path), optimizers=(opt, None), rho=0.3)


def test_a_method_is_something_to_call_that_can_climb(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"such as VaSSO.*got 'vasso'"):
        InOrder(windows.characters(), arguments(tmp_path), method="vasso")
    model = windows.characters()
    base = SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="got SAMPa"):
        trained(tmp_path, model=model, optimizers=(base, None), method=SAMPa)


def test_another_method_and_its_settings(tmp_path: Path) -> None:
    opt = trained(tmp_path, method=partial(ASAM, eta=0.2), rho=2.0).sharpness_aware
    assert isinstance(opt, ASAM)
    assert opt.param_groups[0]["rho"] == 2.0
    assert opt.geometry.eta == 0.2


def test_without_a_radius_it_is_the_plain_trainer(tmp_path: Path) -> None:
    ours = trained(tmp_path, rho=0.0)
    assert ours.sharpness_aware.cost == ours.state.global_step

    class Plain(Trainer):
        _get_train_sampler = InOrder._get_train_sampler

    plain = trained(tmp_path, kind=Plain)
    assert torch.equal(weights(ours.model), weights(plain.model))


def test_a_step_that_does_not_climb_is_not_replayed(tmp_path: Path) -> None:
    seen = []

    class Counting(InOrder):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(self.sharpness_aware.perturbed)
            return super().compute_loss(*args, **kwargs)

    trained(tmp_path, kind=Counting, samples=16, method=partial(LookSAM, k=2))
    assert seen == 2 * [False, False, True, True, False, False]


def test_a_method_that_wants_no_gradient_at_w_takes_one_pass(tmp_path: Path) -> None:
    model, twin = windows.characters(), windows.characters()
    base = SGD(model.parameters(), lr=0.5, momentum=0.9)
    trainer = trained(tmp_path, model=model, optimizers=(base, None), method=MSAM, rho=RHO)
    assert trainer.sharpness_aware.cost == trainer.state.global_step
    opt = MSAM(SGD(twin.parameters(), lr=0.5, momentum=0.9), rho=RHO)
    losses = []
    for passes in windows_of(twin, lines(14), 2, by_tokens=False):
        with opt.ascended():
            losses.append(sum(one_pass().item() for one_pass in passes))
        opt.step()
        opt.zero_grad()
    assert torch.equal(weights(model), weights(twin))
    assert logged(trainer) == pytest.approx(losses, rel=1e-6)


def test_what_the_trainer_cannot_give_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"use step\(closure\)"):
        trained(tmp_path, method=ESAM)


def test_labels_may_be_taken_out_of_the_inputs(tmp_path: Path) -> None:
    class Popping(InOrder):
        def compute_loss(self, model: nn.Module, inputs: Any, **_: Any) -> Tensor:
            labels = inputs.pop("labels")
            return model(**inputs, labels=labels)["loss"]

        def _prepare_inputs(self, inputs: Any) -> Any:
            return inputs  # on the CPU the Trainer's own copy could be left out

    settings = {"rho": RHO, "theta": THETA}
    popping = trained(tmp_path, kind=Popping, **settings)
    assert torch.equal(weights(popping.model), weights(trained(tmp_path, **settings).model))


@pytest.mark.parametrize("order", ["mixin first", "mixin last"])
def test_the_mixin_goes_with_a_trainer_of_ones_own(tmp_path: Path, order: str) -> None:
    class Own(Trainer):
        _get_train_sampler = InOrder._get_train_sampler

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().compute_loss(*args, **kwargs)

    bases = (SharpnessAwareMixin, Own) if order == "mixin first" else (Own, SharpnessAwareMixin)
    kind = type("Both", bases, {})
    trainer = trained(tmp_path, kind=kind, rho=RHO)
    assert trainer.sharpness_aware.cost == 2 * trainer.state.global_step
    assert logged(trainer)[0] == pytest.approx(2 * logged(trained(tmp_path))[0])


def test_training_twice_goes_on_with_the_same_optimizer(tmp_path: Path) -> None:
    trainer = trained(tmp_path, rho=RHO)
    opt, cost = trainer.sharpness_aware, trainer.sharpness_aware.cost
    trainer.train()
    assert trainer.sharpness_aware is opt
    assert opt.cost == 2 * cost


def test_evaluation_in_between_changes_nothing(tmp_path: Path) -> None:
    often = {"eval_strategy": "steps", "eval_steps": 1}
    ours = trained(tmp_path, args=often, eval_dataset=lines(4), rho=RHO)
    assert torch.equal(weights(ours.model), weights(trained(tmp_path, rho=RHO).model))


def test_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    found = []
    for checkpointing in (True, False):
        args = {
            "gradient_checkpointing": checkpointing,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        }
        ours = trained(tmp_path, model=gpt(dropout=0.3), args=args, rho=RHO)
        found.append(weights(ours.model))
    assert torch.equal(*found)


def test_a_gradient_that_is_not_finite_skips_the_step(tmp_path: Path) -> None:
    class Poisoned(InOrder):
        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            poison = self.state.global_step == 1 and self.sharpness_aware.perturbed
            return loss * float("nan") if poison else loss

    model, twin = windows.characters(), windows.characters()
    trainer = trained(tmp_path, kind=Poisoned, model=model, samples=12, rho=RHO, theta=1.0)
    assert trainer.sharpness_aware.skipped == 1
    opt = SAM(AdamW(windows.decay_groups(twin, 0.1), lr=1e-2, fused=True), rho=RHO)
    passes = windows_of(twin, lines(12), 2, by_tokens=False)
    windows.plain_loop(opt, [passes[0], passes[2]], clip=None, params=[])
    assert torch.equal(weights(model), weights(twin))


def test_ours_in_the_plain_trainer_is_an_error_at_the_first_step(tmp_path: Path) -> None:
    model = windows.characters()
    opt = VaSSO(SGD(model.parameters(), lr=0.5), rho=RHO)
    plain = Trainer(model, arguments(tmp_path), train_dataset=lines(14), data_collator=collate)
    plain.optimizer = opt
    with pytest.raises(RuntimeError, match=r"makes plain steps of SGD.*SharpnessAwareTrainer"):
        plain.train()
    assert opt.cost == 0


def resumable(folder: Path, **more: Any) -> SharpnessAwareTrainer:
    args = arguments(
        folder,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        save_strategy="steps",
        save_steps=4,
        lr_scheduler_type="linear",
        **more,
    )
    data, model = lines(22), gpt(dropout=0.3)
    return SharpnessAwareTrainer(
        model, args, train_dataset=data, data_collator=collate, rho=RHO, theta=0.2
    )


def slope(opt: SharpnessAware) -> list[Tensor]:
    return [opt.state[p]["vasso_d"] for group in opt.param_groups for p in group["params"]]


def test_resuming_with_shuffle_and_dropout_bit_for_bit(tmp_path: Path) -> None:
    whole = resumable(tmp_path)
    whole.train()
    assert whole.state.global_step == 12
    resumed = resumable(tmp_path / "again")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))  # within an epoch
    assert resumed.state.global_step == 12
    assert torch.equal(weights(resumed.model), weights(whole.model))
    for a, b in zip(slope(resumed.sharpness_aware), slope(whole.sharpness_aware), strict=True):
        assert torch.equal(a, b)
    assert resumed.sharpness_aware.cost == 24


def test_a_checkpoint_of_the_trainer_holds_the_slope(tmp_path: Path) -> None:
    found = []

    class Look(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            found.append([d.clone() for d in slope(trainer.sharpness_aware)])
            control.should_training_stop = True

    trainer = resumable(tmp_path)
    trainer.add_callback(Look())
    trainer.train()
    saved = torch.load(tmp_path / "checkpoint-4" / "optimizer.pt", weights_only=True)
    for number, d in enumerate(found[0]):
        assert d.any()
        assert torch.equal(saved["state"][number]["vasso_d"], d)


def test_fp16_on_a_cpu_is_float32(tmp_path: Path) -> None:
    trainer = trained(tmp_path, args={"fp16": True}, rho=RHO)
    assert trainer.accelerator.scaler is None
    assert torch.equal(weights(trainer.model), weights(trained(tmp_path, rho=RHO).model))


@pytest.mark.parametrize("where", [None, "below", "above"])
def test_a_scaled_loop_is_plain(tmp_path: Path, where: str | None) -> None:
    class Scaled(InOrder):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.accelerator.scaler = windows.scaler()

        def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Tensor:
            windows.pretend_fp16(self.accelerator)
            return windows.overflowing(model, self.sharpness_aware, where)(**inputs)

    theirs, ours = windows.characters(), windows.characters()
    args = {"max_grad_norm": 0.3}
    trainer = trained(tmp_path, kind=Scaled, model=theirs, args=args, rho=RHO)
    opt = VaSSO(AdamW(windows.decay_groups(ours, 0.1), lr=1e-2, fused=True), rho=RHO)
    whole = list(in_windows(batches(lines(14), 2), 2))
    compute_loss = windows.overflowing(ours, opt, where)

    def divided(**batch: Tensor) -> Tensor:
        window = next(w for w in whole if any(b["labels"] is batch["labels"] for b in w))
        return compute_loss(**batch) / len(window)

    scale = windows.scaled_loop(opt, whole, divided, clip=0.3, model=ours)
    assert torch.equal(weights(theirs), weights(ours))
    assert trainer.accelerator.scaler.get_scale() == scale
    assert trainer.sharpness_aware.skipped == opt.skipped == (where is not None)


def train_on_ranks(folder: Path) -> Tensor:
    args = {"ddp_backend": "gloo", "max_grad_norm": 0.3, "optim": "sgd", "learning_rate": 0.5}
    args["weight_decay"], model = 0.0, windows.characters(torch.float64)
    trainer = trained(folder, model=model, samples=24, args=args, rho=RHO, theta=THETA)
    assert (trainer.sharpness_aware.cost, trainer.accelerator.num_processes) == (6, 2)
    return weights(model)


@pytest.mark.ranks
def test_two_processes_equal_one_on_the_whole_batch(tmp_path: Path) -> None:
    found = on_two_ranks(f"{__name__}:train_on_ranks", tmp_path)
    model = windows.characters(torch.float64)
    opt = VaSSO(SGD(model.parameters(), lr=0.5), rho=RHO, theta=THETA)
    passes = windows_of(model, lines(24), 4, by_tokens=False)  # 2 ranks, 2 micro-batches each
    windows.plain_loop(opt, passes, clip=0.3, params=list(model.parameters()))
    for rank in found:
        torch.testing.assert_close(rank, weights(model), rtol=0, atol=1e-14)


def test_a_recipe_is_a_factory_for_the_trainer(tmp_path: Path) -> None:
    ends = []
    for recipe in (True, False):
        model, args = windows.characters(), arguments(tmp_path)
        given: dict[str, Any] = {
            "optimizers": (VaSSO(SGD(model.parameters(), lr=0.1), rho=RHO), None)
        }
        if recipe:
            make = Recipe(VaSSO, SGD, rho=RHO)
            given = {"optimizer_cls_and_kwargs": (make, {"lr": 0.1})}
        trainer = InOrder(model, args, train_dataset=lines(8), data_collator=collate, **given)
        trainer.train()
        assert (trainer.sharpness_aware.model is model) == recipe
        ends.append(weights(model))
    assert torch.equal(*ends)


def test_a_schedule_free_base_is_told_when_to_train_and_when_to_evaluate(tmp_path: Path) -> None:
    """With rho = 0 the losses of the plain Trainer, of its averaged weights, bit for bit."""
    losses = []
    for ours in (True, False):
        model = windows.characters()
        base: Any = AdamWScheduleFree(model.parameters(), lr=1e-2)
        opt = SAM(base, rho=0.0) if ours else base
        trainer = (InOrder if ours else PlainInOrder)(
            model,
            arguments(tmp_path, eval_strategy="steps", eval_steps=2),
            train_dataset=lines(12),
            eval_dataset=lines(4),
            data_collator=collate,
            optimizers=(opt, None),
        )
        trainer.train()
        losses.append(logged(trainer, "eval_loss"))
        assert len(losses[-1]) == 3
    assert losses[0] == losses[1]


class Functional(FunctionalMixin, PlainInOrder):
    """Functional-SAM in the Trainer, on the samples as they come."""


def functional_loop(model: Any, opt: Any, data: Any, accumulate: int) -> None:
    """By hand: v of every micro-batch is kept, one perturbation for the window."""
    rows = [data[i : i + 2] for i in range(0, len(data), 2)]
    for window in (rows[i : i + accumulate] for i in range(0, len(rows), accumulate)):
        inputs = [{key: torch.stack([x[key] for x in row]) for key in row[0]} for row in window]
        kept = []
        for x in inputs:
            found = model(**x)
            found.logits.retain_grad()
            # the Trainer divides by all 16 labels of a row, 15 of which are predicted
            (found.loss * 15 / 16 / len(window)).backward()
            kept.append(found.logits.grad)
        with opt.ascended():
            for x, v in zip(inputs, kept, strict=True):
                model(**x).logits.backward(v)
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("method", [SAM, PreconditionedSAM])
def test_functional_sam_is_a_loop_of_two_lines(
    tmp_path: Path, method: Any, accumulate: int
) -> None:
    data = [{"input_ids": x, "labels": x} for x in torch.randint(64, (8, 16))]
    model, twin = gpt().double(), gpt().double()
    plain = gpt().double()
    args = arguments(tmp_path, gradient_accumulation_steps=accumulate, max_grad_norm=0.0)

    def base(model: Any) -> AdamW:
        """Its eps is far above gradients that are rounding alone, as those of a key's bias."""
        return AdamW(model.parameters(), lr=0.1, eps=0.1, weight_decay=0.0)

    more: dict[str, Any] = {"args": args, "train_dataset": data, "method": method, "rho": RHO}
    trainer = Functional(model, optimizers=(base(model), None), **more)
    trainer.train()
    functional_loop(twin, method(base(twin), rho=RHO, model=twin), data, accumulate)
    # the losses of transformers are in float32
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-6)
    InOrder(plain, optimizers=(base(plain), None), **more).train()
    assert (weights(plain) - weights(model)).abs().max() > 1e-4
    losses = [row["vasso/perturbed_loss"] for row in trainer.state.log_history if "loss" in row]
    assert min(losses) > 3  # near log(64), not the product of logits and v


def test_functional_sam_draws_the_same_dropout_twice(tmp_path: Path) -> None:
    data = [{"input_ids": x, "labels": x} for x in torch.randint(64, (8, 16))]
    model, seen = gpt(dropout=0.5), list[Tensor]()
    model.transformer.drop.register_forward_hook(lambda m, x, z: seen.append(z.detach() == 0))
    args = arguments(tmp_path, gradient_accumulation_steps=2)
    Functional(model, args, train_dataset=data, method=SAM, rho=RHO).train()
    first, second = (
        [torch.stack(seen[i::4]) for i in (0, 1)],
        [torch.stack(seen[i::4]) for i in (2, 3)],
    )
    assert all(map(torch.equal, first, second))
    assert not torch.equal(*first)


LORA = LoraConfig(r=2, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)


def adapted(kind: str, folder: Path) -> tuple[Trainer, Any]:
    """A Trainer of adapters in GPT-2, whose weights are transposed; windows of two, clipped."""
    model = get_peft_model(gpt(), LORA)
    base = AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    opt: Any = BiLoRA(base, model=model) if kind == "Bi" else FlatLoRA(base, total=4, model=model)

    class Inside(PlainInOrder):
        def training_step(self, *given: Any, **named: Any) -> Tensor:
            with opt.ascended():
                return super().training_step(*given, **named)

    args = arguments(
        folder,
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=2,
        max_steps=4,
        max_grad_norm=0.5,
    )
    host = PlainInOrder if kind == "Bi" else Inside
    trainer = host(
        model, args, train_dataset=lines(16), data_collator=collate, optimizers=(opt, None)
    )
    return trainer, opt


@pytest.mark.parametrize("kind", ["Bi", "Flat"])
def test_adversaries_of_adapters_train_in_the_plain_trainer_and_resume(
    kind: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    trainer, opt = adapted(kind, tmp_path)
    trainer.train()
    assert opt.cost == 4
    assert opt.last.climbed
    saved = {path.name for path in (tmp_path / "checkpoint-2").iterdir() if path.is_dir()}
    assert saved == set()  # no second adapter
    torch.manual_seed(0)
    again, other = adapted(kind, tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(weights(again.model), weights(trainer.model))
    assert other.cost == 4
