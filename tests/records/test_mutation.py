"""The tool that changes the core in memory does change it, and only where it says."""

import ast

from tests.records.records import imported
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState
from vasso.parts.policies import EveryK

PATH = "vasso/parts/policies.py"
RUN = imported("mutation", "run")


def test_a_mutant_is_one_change_that_can_be_compiled() -> None:
    text = (RUN.PROJECT / PATH).read_text()
    mutants = list(RUN.mutants_of(PATH))
    assert len({mutant.name for mutant in mutants}) > 100
    for mutant in mutants[::20]:
        source = mutant.source()
        assert ast.unparse(ast.parse(source)) != ast.unparse(ast.parse(text))
        assert source.replace(mutant.after, "").count("\n") <= text.count("\n")


def test_a_mutant_is_seen_by_objects_that_exist_already() -> None:
    every = EveryK(2)
    wanted = "context.step % self.k == 0", "(context.step % self.k != 0)"
    mutant = next(m for m in RUN.mutants_of(PATH) if (m.before, m.after) == wanted)
    climbs = every.climb(None, PartState({}), StepContext(0))
    try:
        RUN.transplant(PATH, mutant.source())
        assert every.climb(None, PartState({}), StepContext(0)) is not climbs
    finally:
        RUN.transplant(PATH, (RUN.PROJECT / PATH).read_text())
    assert every.climb(None, PartState({}), StepContext(0)) is climbs
