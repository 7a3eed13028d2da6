"""Does a report fit the Plan? Checked before anything of it counts."""

from __future__ import annotations

from dataclasses import replace

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import ChildrenArrived
from rayorch_prefect.model.reports import ContractBreach, OutputReport, RowsReport, Shape
from rayorch_prefect.program.plan import Call, Plan
from rayorch_prefect.scheduler.items import total_slots
from rayorch_prefect.scheduler.workers import Flight


def preflight(plan: Plan, call: Call, flight: Flight, report: RowsReport) -> ContractBreach | None:
    """What does not fit, or None."""
    if report.rows != flight.rows:
        return ContractBreach(f"{flight.rows} results", f"{report.rows}")
    if len(report.outputs) != len(call.outputs):
        return ContractBreach(f"{len(call.outputs)} outputs", f"{len(report.outputs)}")
    if any(not 0 <= row < flight.rows for row in (*report.failures, *report.skipped)):
        return ContractBreach(f"failures of rows 0..{flight.rows - 1}", "another row")
    for index, output in enumerate(report.outputs):
        breach = _output(index, call.list_depths[index], call.masks[index], flight.rows, output)
        if breach is not None:
            return breach
    return _aligned(plan, call, report)


def source_misfit(plan: Plan, rows: int, source: OutputReport) -> ContractBreach | None:
    """What of the description of source rows does not fit, or None."""
    return _output(0, plan.source_list_depth, plan.source_is_mask, rows, source)


def require_chunk(
    plan: Plan, call: Call, flight: Flight, arrived: ChildrenArrived, taken: int | None
) -> int:
    """How many children a chunk has that fits the Plan and follows the `taken` ones (None: the
    row is of no interest any more). Raises IllegalEvent."""
    if not call.chunked or not 0 <= arrived.row < flight.rows:
        raise IllegalEvent(f"batch {flight.batch} has no row {arrived.row} that comes in chunks")
    chunk = RowsReport(1, arrived.outputs)
    breach = preflight(plan, call, replace(flight, rows=1), chunk)
    if breach is not None:
        raise IllegalEvent(
            f"a chunk of row {arrived.row} of batch {flight.batch}: "
            f"expected {breach.expected}, received {breach.received}"
        )
    lengths = {_length(output, 0) for output in arrived.outputs}
    n = min(lengths)
    if len(lengths) > 1 or not n or (taken is not None and arrived.first != taken):
        raise IllegalEvent(
            f"a chunk of row {arrived.row} of batch {flight.batch} has {n} children from ordinal "
            f"{arrived.first}; {taken} are there"
        )
    return n


def _output(
    index: int, depth: int, is_mask: bool, rows: int, output: OutputReport
) -> ContractBreach | None:
    if depth == 0:
        if output.shapes is not None or output.slots != rows:
            return ContractBreach(f"{rows} values in output {index}", f"{output.slots}")
    else:
        shapes = output.shapes
        if shapes is None or len(shapes) != rows or not all(_fits(one, depth) for one in shapes):
            return ContractBreach(f"{rows} lists of children in output {index}", "another shape")
        if sum(map(total_slots, shapes)) != output.slots:
            return ContractBreach("as many stored children as were counted", f"{output.slots}")
    if is_mask and (output.mask is None or len(output.mask) != output.slots):
        return ContractBreach(f"boolean values in output {index}", "something else")
    return None


def _fits(shape: Shape, depth: int) -> bool:
    if depth == 1:
        return isinstance(shape, int) and shape >= 0
    return not isinstance(shape, int) and all(_fits(element, depth - 1) for element in shape)


def _aligned(plan: Plan, call: Call, report: RowsReport) -> ContractBreach | None:
    """Outputs that share a child Domain have lists of equal lengths in every row."""
    for domain in plan.domains:
        sources = [_source(plan, expand) for expand in domain.expands]
        mine = [call.outputs.index(port) for port in sources if port in call.outputs]
        if len(mine) < 2:
            continue
        for row in range(report.rows):
            lengths = [_length(report.outputs[index], row) for index in mine]
            if row not in report.failures and len(set(lengths)) > 1:
                return ContractBreach(
                    f"lists of equal lengths for Domain {domain.name}",
                    " and ".join(map(str, lengths)),
                    row,
                )
    return None


def _source(plan: Plan, port: int) -> int:
    op = plan.ports[port].op
    return getattr(op, "source", -1)


def _length(output: OutputReport, row: int) -> int:
    shape = output.shapes[row] if output.shapes is not None else 0
    return shape if isinstance(shape, int) else len(shape)
