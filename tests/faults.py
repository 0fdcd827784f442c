"""What can go wrong in a step, and a plain loop that is told of it.

Each `check_...` states one promise and fails loudly: the tests hold vasso to it, `test_mutants.py`
breaks vasso on purpose and shows that the check would have noticed.
"""

import contextlib
import copy
import gc
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import grad_mode
from torch.optim import SGD, AdamW, Optimizer

import vasso
from tests.support import problems
from tests.support.problems import Way
from vasso import SAM, SharpnessAware, VaSSO

Batch: TypeAlias = tuple[Tensor, Tensor]

WAYS: tuple[Way, ...] = ("closure", "ascended", "ascended, body always run")
RHO, THETA = 0.1, 0.3
METHODS: dict[str, Callable[..., SharpnessAware]] = {
    "SAM": partial(SAM, rho=RHO),
    "VaSSO": partial(VaSSO, rho=RHO, theta=THETA),
}
BASES: dict[str, Callable[..., Optimizer]] = {
    "SGD": partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "AdamW": partial(AdamW, lr=0.01, weight_decay=0.1),
    # one call moves all weights, so that an interrupt finds them before it or after it
    "SGD in one call": partial(SGD, lr=0.05, momentum=0.9, foreach=True),
    "AdamW in one call": partial(AdamW, lr=0.01, weight_decay=0.1, fused=True),
}


# -- a small world ------------------------------------------------------------------------------


class Net(nn.Module):
    """Two layers with BatchNorm and, if wanted, dropout between them."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8, bias=False)  # BatchNorm would take it away, up to rounding
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(self.norm(self.inner(x)).tanh()))


def net(dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2023)
        return Net(dropout).to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float64, seed: int = 7) -> list[Batch]:
    draw = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(16, 6, generator=draw, dtype=torch.float64).to(dtype),
            torch.randint(3, (16,), generator=draw),
        )
        for _ in range(count)
    ]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def closure_of(opt: Optimizer, model: nn.Module, batch: Batch) -> Callable[[], Tensor]:
    return problems.closure_of(opt, partial(loss_of, model, batch))


def take_step(opt: Any, model: nn.Module, batch: Batch, way: Way = "closure") -> Any:
    return problems.take_step(opt, partial(loss_of, model, batch), way)


# -- what can go wrong --------------------------------------------------------------------------


class MishapError(RuntimeError):
    """Something that happens in a closure and is none of our business."""


Mishap: TypeAlias = type[BaseException] | Literal["nan in the data", "inf loss", "inf gradient"]
EXCEPTIONS: tuple[Mishap, ...] = (MishapError, KeyboardInterrupt, MemoryError)
NONFINITE: tuple[Mishap, ...] = ("nan in the data", "inf loss", "inf gradient")


@dataclass(frozen=True)
class Fault:
    where: Literal[1, 2]  # in which pass, the first (at w) or the second (at w + epsilon)
    what: Mishap  # an exception after the forward, or a gradient that is not finite

    @property
    def unseen(self) -> bool:
        """Whether a loop of the caller's own would end before it comes to us."""
        return self.where == 1 and isinstance(self.what, type)

    def __str__(self) -> str:
        what = self.what.__name__ if isinstance(self.what, type) else self.what
        return f"{what}, pass {self.where}"


FAULTS = [Fault(where, what) for where in (1, 2) for what in (*EXCEPTIONS, *NONFINITE)]


def run_pass(model: nn.Module, batch: Batch, what: Mishap | None = None) -> Tensor:
    """Forward and backward, with a mishap on the way if one is given."""
    x, y = batch
    if what == "nan in the data":
        x = x.clone()
        x[0, 0] = math.nan
    loss = nn.functional.cross_entropy(model(x), y)
    if isinstance(what, type):
        raise what("in the closure")
    (loss * math.inf if what == "inf loss" else loss).backward()
    if what == "inf gradient":
        last = list(model.parameters())[-1]
        last.grad[-1] = math.inf
    return loss


# -- ours and its twin --------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    method: str = "VaSSO"
    base: str = "SGD"
    way: Way = "closure"
    restore: Literal["copy", "recompute"] = "copy"
    nonfinite: Literal["skip", "raise", "ignore"] = "skip"

    def __str__(self) -> str:
        return f"{self.method} {self.base}, {self.way}, {self.restore}"


class Learner:
    def __init__(self, setup: Setup, **options: Any) -> None:
        self.setup, self.model = setup, net()
        base = BASES[setup.base](self.model.parameters())
        self.opt = METHODS[setup.method](
            base,
            model=self.model,
            restore=setup.restore,
            nonfinite=setup.nonfinite,
            **options,
        )

    def step(self, batch: Batch, fault: Fault | None = None) -> BaseException | None:
        """One step; gives back the exception that came out of it, if one did."""
        passes = iter((1, 2))

        def one_pass() -> Tensor:
            what = fault.what if fault and next(passes) == fault.where else None
            return run_pass(self.model, batch, what)

        try:
            problems.drive(self.opt, one_pass, self.setup.way)
        except BaseException as error:
            return error
        return None

    def everything(self) -> dict[str, Tensor]:
        slope = {p: entry["d"] for p, entry in slopes(self.opt).items()}
        return everything(self.model, self.opt.base, slope)


class Twin:
    """The same in plain torch: it never sees a fault, it is told of it."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.model = setup, net()
        self.base = BASES[setup.base](self.model.parameters())
        self.slope: dict[Tensor, Tensor] = {}

    def step(self, batch: Batch, fault: Fault | None = None) -> None:
        """What the promises say is left behind by a step with this fault."""
        if fault and fault.where == 1:
            if fault.what != "nan in the data":
                loss_of(self.model, batch)  # the statistics keep what the pass at w gave
            return
        g = self._gradient(batch)
        d = self._slope(g)
        if fault:
            return
        w = {p: p.detach().clone() for p in g}
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        length = torch.linalg.vector_norm(torch.stack([x.norm() for x in d.values()]))
        with torch.no_grad():
            for p, x in d.items():
                p.addcdiv_(x, length, value=RHO)
        self._gradient(batch)
        with torch.no_grad():
            for p, x in w.items():
                p.copy_(x)
            for buffer, x in zip(self.model.buffers(), statistics, strict=True):
                buffer.copy_(x)
        self.base.step()

    def _gradient(self, batch: Batch) -> dict[Tensor, Tensor]:
        self.model.zero_grad()
        loss_of(self.model, batch).backward()
        return {p: p.grad for p in self.model.parameters() if p.grad is not None}

    def _slope(self, g: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        if self.setup.method == "SAM":
            return {p: x.clone() for p, x in g.items()}
        for p, x in g.items():
            self.slope[p] = self.slope[p].lerp(x, THETA) if p in self.slope else x.clone()
        return self.slope

    def everything(self) -> dict[str, Tensor]:
        return everything(self.model, self.base, self.slope)


def slopes(opt: SharpnessAware) -> dict[Tensor, dict[str, Tensor]]:
    """What is really remembered of each parameter, read from the public state."""
    return {p: {"d": x["vasso_d"]} for p, x in opt.state.items() if x.get("vasso_has_d")}


def everything(
    model: nn.Module, base: Optimizer, slope: Mapping[Tensor, Tensor]
) -> dict[str, Tensor]:
    names = {p: name for name, p in model.named_parameters()}
    found = {name: value for name, value in model.state_dict().items()}
    found |= {f"slope of {names[p]}": x for p, x in slope.items()}
    for p, entry in base.state.items():
        found |= {f"{key} of {names[p]}": torch.as_tensor(x) for key, x in entry.items()}
    return {name: x.detach().clone() for name, x in found.items()}


def assert_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], about: str = "") -> None:
    """Equal bit for bit, name by name."""
    assert_near(ours, theirs, 0.0, about)


def assert_near(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], atol: float, about: str = ""
) -> None:
    """Equal name by name, up to a tolerance that the caller justifies."""
    assert ours.keys() == theirs.keys(), f"{about}: {sorted(ours.keys() ^ theirs.keys())}"
    for name, x in ours.items():
        gap = (x.double() - theirs[name].double()).abs().max().item()
        assert gap <= atol, f"{about}: {name} differs by {gap}"


def leaves(tree: Any, at: str = "") -> dict[str, Any]:
    """What nested dicts, lists and tuples hold, by path."""
    if isinstance(tree, (list, tuple)):
        tree = dict(enumerate(tree))
    if not isinstance(tree, Mapping):
        return {at: tree}
    return {path: x for key, v in tree.items() for path, x in leaves(v, f"{at}/{key}").items()}


def assert_same_tree(ours: Any, theirs: Any) -> None:
    """Nested dicts and lists are equal: tensors bit for bit and in dtype, everything else by ==."""
    mine, yours = leaves(ours), leaves(theirs)
    assert mine.keys() == yours.keys(), sorted(mine.keys() ^ yours.keys())
    for path, x in mine.items():
        y = yours[path]
        if isinstance(x, Tensor):
            assert x.dtype == y.dtype, f"{path}: {x.dtype} and {y.dtype}"
            assert torch.equal(x, y), f"{path} differs by {(x.double() - y.double()).abs().max()}"
        else:
            assert x == y, f"{path}: {x!r} and {y!r}"


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], atol: float = 0.0) -> bool:
    return all(bool(((x - theirs[name]).abs() <= atol).all()) for name, x in ours.items())


# -- promise 5, and 2 for exceptions ------------------------------------------------------------


def check_faults(setup: Setup, faults: Mapping[int, Fault], steps: int) -> None:
    """After every step all is as in a twin that was told of the fault; only skips are counted."""
    # float64: a recomputed return is off by 1e-16 per step, which 60 steps do not make 1e-12
    tolerance = 0.0 if setup.restore == "copy" else 1e-12
    ours, twin, skipped = Learner(setup), Twin(setup), 0
    for t, batch in enumerate(batches(steps)):
        fault = faults.get(t)
        error = ours.step(batch, fault)
        twin.step(batch, fault)
        expected = _expected(fault, setup)
        assert type(error) is (expected or type(None)), f"{fault} gave {error!r}"
        skipped += fault is not None and expected is None
        assert ours.opt.skipped == skipped, f"{ours.opt.skipped} skips counted after {fault}"
        assert_near(ours.everything(), twin.everything(), tolerance, f"step {t}, {fault}")


def _expected(fault: Fault | None, setup: Setup) -> type[BaseException] | None:
    if fault is None:
        return None
    if isinstance(fault.what, type):
        return fault.what
    return FloatingPointError if setup.nonfinite == "raise" else None


def random_faults(setup: Setup, steps: int, seed: int) -> dict[int, Fault]:
    """Something goes wrong in every third step, at times twice in a row."""
    draw, found = random.Random(seed), {}
    for t in range(steps):
        # a first pass of the caller's own that raises before `ascended` is one we never hear of
        unseen = setup.way != "closure" and t - 1 in found and found[t - 1].unseen
        if draw.random() < 1 / 3 and not unseen:
            found[t] = draw.choice(FAULTS)
    return found


# -- promise 2 for Ctrl-C -----------------------------------------------------------------------


class _Interrupt:
    """Presses Ctrl-C at the n-th instant at which Python would notice it in the code of a step.

    Python looks for signals when one of its functions begins and when a built-in one returns: what
    a profiler is told. The context managers that a step uses count, its base and closure do not.
    """

    files = (os.path.dirname(vasso.__file__), contextlib.__file__, grad_mode.__file__)

    def __init__(self, n: int) -> None:
        self.left, self.place = n, ""

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if code.co_name == "<genexpr>" or not code.co_filename.startswith(self.files):
            return  # what is raised while a generator is collected is lost
        if event in ("call", "c_return"):
            self.left -= 1
            if self.left == 0:
                name = os.path.basename(code.co_filename)
                self.place = f"Ctrl-C at {event} in {name}:{frame.f_lineno}"
                raise KeyboardInterrupt


def check_interrupts(setup: Setup, every: int = 1) -> None:
    """Ctrl-C at any (or every n-th) instant leaves x_t or x_{t+1}; the next step can be taken."""
    first, second, third = batches(3)
    calm, homes = Learner(setup), []
    for batch in (first, second):
        calm.step(batch)
        homes.append(weights(calm.model))
    # float64: what is recomputed is off by an ulp of weights of order 1
    tolerance = 0.0 if setup.restore == "copy" else 1e-15
    wrong, n = [], 0
    while True:
        n += every
        ours, ctrl_c = Learner(setup), _Interrupt(n)
        ours.step(first)
        before = sys.getprofile()
        sys.setprofile(ctrl_c)
        error = repr(ours.step(second))  # a traceback would keep the frames of the step alive
        sys.setprofile(before)
        if not ctrl_c.place:
            break
        torch.set_grad_enabled(True)  # torch's own no_grad() does not survive a signal
        if not any(equal(weights(ours.model), home, tolerance) for home in homes):
            wrong.append(f"{ctrl_c.place} leaves weights perturbed: {error}")
        elif (error := ours.step(third)) is not None:
            wrong.append(f"{ctrl_c.place} makes the next step impossible: {error!r}")
    assert n > 200, f"only {n} instants in a step"
    assert not wrong, "\n".join(wrong)


@contextmanager
def _timer() -> Iterator[Callable[[float], None]]:
    """A function that sends this process a SIGINT after some seconds, or never if 0."""

    def ctrl_c(number: int, frame: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    handlers = {
        signal.SIGALRM: signal.signal(signal.SIGALRM, ctrl_c),  # pytest-timeout's, for a while
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    began = time.monotonic()
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - time.monotonic() + began, 0.01))


def check_sigint_at_any_time(setup: Setup, steps: int, seed: int = 0) -> None:
    """A SIGINT at random instants leaves x_t or x_{t+1}, never anything in between."""
    draw, ours = random.Random(seed), Learner(setup)
    data = batches(8)
    began = time.perf_counter()
    for batch in data:
        ours.step(batch)
    typical = (time.perf_counter() - began) / len(data)
    interrupted = 0
    with _timer() as press_after, _no_collection():
        for t in range(steps):
            before, calm = weights(ours.model), copy.deepcopy(ours)
            batch = data[t % len(data)]
            try:
                press_after(draw.uniform(1e-6, 1.2 * typical))
                if (error := ours.step(batch)) is not None:
                    raise error
                press_after(0)
            except KeyboardInterrupt:
                interrupted += 1
            error = None  # its traceback would keep the frames of the step alive
            press_after(0)
            torch.set_grad_enabled(True)  # torch's own no_grad() does not survive a signal
            now = weights(ours.model)
            if not equal(now, before):
                calm.step(batch)
                assert_same(now, weights(calm.model), f"SIGINT in step {t}")
    assert interrupted > steps / 10, f"only {interrupted} of {steps} steps were interrupted"


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collector, in which a KeyboardInterrupt would be lost."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# -- the other halves of promises 2, 8, 9, 10, 12 -----------------------------------------------


def check_missing_second_gradient(way: Way) -> None:
    """A tensor that gets no gradient in the second pass comes home bit for bit, like the others."""
    always, only_first = (torch.tensor(x, requires_grad=True) for x in ([0.1, 0.7], [0.3, 1.1]))
    opt = SAM(SGD([always, only_first], lr=0.0), rho=RHO)
    before = {"always": always.detach().clone(), "only first": only_first.detach().clone()}

    def loss() -> Tensor:
        return always.exp().sum() + (0.0 if opt.perturbed else only_first.exp().sum())

    problems.take_step(opt, loss, way)
    assert_same({"always": always, "only first": only_first}, before, "lr is 0")


def check_batchnorm(mode: Literal["clean", "both", "perturbed"], way: Way) -> None:
    """Statistics are those of plain forwards at w, at w + epsilon, or at both in this order."""
    model, (batch,) = net(), batches(1)
    twin = copy.deepcopy(model)
    opt = METHODS["VaSSO"](SGD(model.parameters(), lr=0.1), model=model, batchnorm=mode)
    moved = []
    opt.observe(lambda record: moved.extend(x.clone() for x in record.epsilon))
    take_step(opt, model, batch, way)
    if mode in ("clean", "both"):
        twin(batch[0])
    if mode in ("perturbed", "both"):
        with torch.no_grad():
            for p, x in zip(twin.parameters(), moved, strict=True):
                p.add_(x)
        twin(batch[0])
    # epsilon is measured after rounding, so w + epsilon is what the second pass saw up to an ulp
    assert_near(statistics(model), statistics(twin), 0.0 if mode == "clean" else 1e-15, mode)


def check_dropout_is_replayed() -> None:
    """The second pass draws the masks of the first, and the next step draws others."""
    assert _masks(same_rng=True) == [True, False], "(pass 2 is pass 1, step 2 is step 1)"


def _masks(same_rng: bool) -> list[bool]:
    drop, w, masks = nn.Dropout(0.5), torch.ones(64, requires_grad=True), []
    opt = SAM(SGD([w], lr=0.1), same_rng=same_rng)

    def loss() -> Tensor:
        dropped = drop(w)
        masks.append(dropped.detach() != 0)
        return dropped.sum()

    for _ in range(2):
        problems.take_step(opt, loss)
    return [torch.equal(masks[0], masks[1]), torch.equal(masks[0], masks[2])]


def check_dropout_is_fresh() -> None:
    """Without `same_rng` every pass draws its own masks."""
    assert _masks(same_rng=False) == [False, False], "a pass drew the masks of another"


def check_autocast_sees_the_adversary(way: Way) -> None:
    """In one autocast block the second loss is that of a block of its own, and not the first."""
    together, apart = (_autocast_losses(way, one_block) for one_block in (True, False))
    assert together[0] != together[1], "the second pass ran at w"
    assert together == apart, "two passes in one block are not two passes in two blocks"


def _autocast_losses(way: Way, one_block: bool) -> list[float]:
    model, (batch,) = net(dtype=torch.float32), batches(1, torch.float32)
    opt = SAM(SGD(model.parameters(), lr=0.5), rho=0.5, model=model)
    block = partial(torch.autocast, "cpu", torch.bfloat16)
    outer, inner = (block, nullcontext) if one_block else (nullcontext, block)
    losses = []

    def one_pass() -> Tensor:
        with inner():
            loss = loss_of(model, batch)
        loss.backward()
        losses.append(loss.item())
        return loss

    def closure() -> Tensor:
        opt.zero_grad()
        return one_pass()

    with outer():
        if way == "closure":
            opt.step(closure)
        else:
            closure()
            with opt.ascended():
                one_pass()
            one_pass()  # at w again, before the base steps
    return losses
