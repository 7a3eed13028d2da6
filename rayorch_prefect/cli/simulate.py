"""`rayorch-prefect simulate`: what a run would take, by the real scheduler and a virtual clock."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rayorch_prefect.cli.measured_stages import stages_in
from rayorch_prefect.cli.png import write_png
from rayorch_prefect.cli.simulation_table import answers, described, sweep_lines, table_lines
from rayorch_prefect.cli.simulation_words import children_of, poison_of, stages_of, sweep_of
from rayorch_prefect.errors import UsageError
from rayorch_prefect.simulation.chain import Chain, Stage
from rayorch_prefect.simulation.conditions import IDEAL, ON_RAY, Conditions
from rayorch_prefect.simulation.load import Load
from rayorch_prefect.simulation.picture import svg
from rayorch_prefect.simulation.simulate import Shape, Simulated, simulate
from rayorch_prefect.simulation.timeline import drawn

MANIFEST = "manifest:"


def run(asked: argparse.Namespace) -> int:
    """Simulate what the arguments ask for; the exit status.

    Raises UsageError for what makes no simulation, StoreError for a manifest that cannot be read.
    """
    _require_folders(asked)
    chain = _chain(asked)
    load = _load(asked, chain)
    runs = _runs(asked, chain, load)
    swept = _swept(asked, chain, load, runs[0])
    if asked.json:
        shown = {"runs": [asdict(one.figures) for one in runs]}
        more = {"sweep": [asdict(one.figures) for one in swept]} if swept else {}
        print(json.dumps({**shown, **more}, indent=1))
    else:
        print("\n".join(_told(load, runs, swept)))
    _draw(asked, runs)
    return 0


def _told(load: Load, runs: Sequence[Simulated], swept: Sequence[Simulated]) -> list[str]:
    lines = [described(load), "", *table_lines(runs), "", *answers(runs)]
    return [*lines, "", *sweep_lines(swept)] if swept else lines


def _chain(asked: argparse.Namespace) -> Chain:
    known: Sequence[Stage] = ()
    step: int | None = asked.step
    if asked.from_metrics is not None:
        known, measured = stages_in(Path(asked.from_metrics))
        step = step or measured
    stages = stages_of(asked.stage, known)
    if not stages:
        raise UsageError("there is nothing to simulate: give --stage, or --from-metrics")
    return Chain.of(stages, step or 16)


def _load(asked: argparse.Namespace, chain: Chain) -> Load:
    if asked.children.startswith(MANIFEST):
        # pyarrow and boto3 take a while, and only a manifest needs them.
        from rayorch_prefect.storage.manifest import children_in

        counts = tuple(children_in(asked.children.removeprefix(MANIFEST)))
    else:
        counts = children_of(asked.children, asked.seed)
    if asked.microbatch_size == 0:
        raise UsageError("--microbatch-size is 0; expected at least 1, or none for all")
    load = Load(counts, microbatch=asked.microbatch_size or 0, active=asked.max_active_microbatches)
    if asked.poison is None:
        return load
    text, at, stage = asked.poison.partition("@")
    poison = poison_of(text, counts, asked.seed)
    return replace(load, poison=poison, poisons=stage if at else chain.pages[0].name)


def _conditions(asked: argparse.Namespace, policy: str) -> Conditions:
    base = IDEAL if asked.ideal else ON_RAY
    return replace(base, policy=policy, batches_at_worker=asked.batches_at_worker)


def _runs(asked: argparse.Namespace, chain: Chain, load: Load) -> list[Simulated]:
    policies = asked.policy.split(",")
    wanted = [(Shape.LINEAGE, policy) for policy in policies]
    wanted += [(shape, "fifo") for shape in _compared(asked.compare)]
    return [_one(asked, chain, load, shape, policy) for shape, policy in wanted]


def _one(
    asked: argparse.Namespace, chain: Chain, load: Load, shape: Shape, policy: str
) -> Simulated:
    conditions = _conditions(asked, policy)
    return simulate(chain, load, shape, conditions, asked.seed, asked.regroup)


def _compared(text: str | None) -> list[Shape]:
    shapes = {shape.value: shape for shape in Shape if shape is not Shape.LINEAGE}
    names = [] if text is None else text.split(",")
    for name in names:
        if name not in shapes:
            raise UsageError(f"--compare: {name!r} is none of {', '.join(shapes)}")
    return [shapes[name] for name in names]


def _swept(
    asked: argparse.Namespace, chain: Chain, load: Load, first: Simulated
) -> list[Simulated]:
    if asked.sweep is None:
        return []
    variants = sweep_of(asked.sweep, chain.stages, first.figures.busiest.stage)
    return [
        _one(asked, _with(chain, stage), load, Shape.LINEAGE, first.figures.policy)
        for stage in variants
    ]


def _with(chain: Chain, stage: Stage) -> Chain:
    stages = [stage if one.name == stage.name else one for one in chain.stages]
    return Chain.of(stages, chain.step)


def _require_folders(asked: argparse.Namespace) -> None:
    """A picture that cannot be written must not cost the simulation."""
    for path in (asked.svg, asked.png):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"the picture {path} cannot be written: there is no such folder")


def _draw(asked: argparse.Namespace, runs: Sequence[Simulated]) -> None:
    if asked.svg is None and asked.png is None:
        return
    picture = drawn(runs)
    try:
        if asked.svg is not None:
            Path(asked.svg).write_text(svg(picture), encoding="utf-8")
        if asked.png is not None:
            write_png(picture, Path(asked.png))
    except OSError as error:
        raise UsageError(f"the picture cannot be written: {error}") from error
