"""The Plan as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from rayorch_prefect.program.options import BACKEND_PATIENCE_S
from rayorch_prefect.program.plan import Call, Domain, Plan, Pool, Reduce
from rayorch_prefect.program.targets import identity


def explain(plan: Plan) -> str:
    """Domains, Calls in order, pools, reduces and outputs; the same text for the same Plan."""
    lines = [f"Program {plan.name}, version {plan.version}", f"fingerprint {plan.fingerprint}"]
    sections = [
        ("Domains", list(_domain_lines(plan, plan.domains[0], 1))),
        ("Calls, in order", [line for call in plan.calls for line in _call_lines(plan, call)]),
        ("Pools", [line for pool in plan.pools for line in _pool_lines(plan, pool)]),
        ("Reduces", [_reduce_line(plan, reduce) for reduce in plan.reduces]),
        ("Outputs", [f"  {_port_on(plan, port)}" for port in plan.output_ports]),
    ]
    for title, body in sections:
        if body:
            lines += ["", title, *body]
    return "\n".join(lines) + "\n"


def _domain_lines(plan: Plan, domain: Domain, indent: int) -> Iterator[str]:
    name = "  " * indent + domain.name
    if domain.parent is None:
        yield f"{name}: the source rows"
    else:
        yield f"{name}: the elements of {_names(plan, domain.expands, sources=True)}"
    for child in plan.domains:
        if child.parent == domain.id:
            yield from _domain_lines(plan, child, indent + 1)


def _call_lines(plan: Plan, call: Call) -> Iterator[str]:
    pool = plan.pools[call.pool]
    manner = "row by row" if pool.rowwise else "whole batches"
    if pool.is_concurrent:
        manner = f"{pool.concurrency} rows in flight in a worker"
    yield f"  #{call.id} {call.stage} on {plan.domains[call.domain].name}"
    yield f"      reads {_names(plan, call.inputs)}"
    yield f"      batch size {pool.batch_size}, {manner}, pool {pool.id}"
    if call.chunked:
        names = ", ".join(plan.domains[domain].name for domain in call.chunked)
        yield f"      hands over {names} in chunks while it runs"
    for index, port in enumerate(call.outputs):
        yield f"      gives {plan.ports[port].name}{_shape(call, index)}, {_readers(plan, port)}"


def _shape(call: Call, index: int) -> str:
    depth, mask = call.list_depths[index], call.masks[index]
    element = "true or false" if mask else "values"
    if depth == 0:
        return " (true or false)" if mask else ""
    return f" ({'lists of ' * depth}{element})"


def _readers(plan: Plan, port: int) -> str:
    readers = [f"#{call.id} {call.stage}" for call in plan.calls if port in call.inputs] + [
        other.name for other in plan.ports if port in _structure_sources(plan, other.id)
    ]
    if port in plan.output_ports:
        readers.append("the output")
    return f"read by {', '.join(readers)}" if readers else "read by nobody"


def _structure_sources(plan: Plan, port: int) -> tuple[int, ...]:
    op = plan.ports[port].op
    reduce = getattr(op, "reduce", None)
    if reduce is not None:
        return (plan.reduces[reduce].sources[getattr(op, "index", 0)],)
    one = [getattr(op, name) for name in ("source", "mask") if hasattr(op, name)]
    return (*one, *getattr(op, "sources", ()))


def _pool_lines(plan: Plan, pool: Pool) -> Iterator[str]:
    calls = [f"#{call.id}" for call in plan.calls if call.pool == pool.id]
    shared = f", shared by Calls {', '.join(calls)}" if len(calls) > 1 else f", Call {calls[0]}"
    needs = [f"{pool.num_cpus:g} CPU"]
    if pool.num_gpus:
        needs.append(f"{pool.num_gpus:g} GPU")
    needs += [f"{amount:g} {name}" for name, amount in sorted(pool.resources.items())]
    workers = "1 worker" if pool.replicas == 1 else f"{pool.replicas} workers"
    each = "" if pool.replicas == 1 else " each"
    tries = "1 try" if pool.retry_budget == 1 else f"{pool.retry_budget} tries"
    yield f"  {pool.id} {pool.stage}: {workers}, {' + '.join(needs)}{each}, {tries}{shared}"
    if pool.node_setup is not None:
        yield f"      sets each node up once: {identity(pool.node_setup.resolve())}"
    limits = list(_limits(pool))
    if limits:
        yield f"      {', '.join(limits)}"
    if pool.label_selector:
        labels = [f"{name}={value}" for name, value in sorted(pool.label_selector.items())]
        yield f"      on nodes with {', '.join(labels)}"
    if pool.runtime_env:
        # Its values may be secrets.
        yield f"      in a runtime_env of its own: {', '.join(sorted(pool.runtime_env))}"


def _limits(pool: Pool) -> Iterator[str]:
    for what, seconds in (("batch", pool.batch_limit_s), ("row", pool.row_limit_s)):
        if seconds is not None:
            yield f"at most {seconds:g} s a {what}"
    if pool.memory_limit_mb is not None:
        yield f"at most {pool.memory_limit_mb} MiB more than when built"
    if pool.recycle_after_batches is not None:
        yield f"a new worker after {pool.recycle_after_batches} batches"
    if pool.recycle_above_mb is not None:
        yield f"a new worker above {pool.recycle_above_mb} MiB"
    if pool.linger_s is not None:
        yield f"a part-filled batch waits {pool.linger_s:g} s"
    if pool.max_pending is not None:
        yield f"at most {pool.max_pending} values pending"
    if pool.max_pending_mb is not None:
        yield f"at most {pool.max_pending_mb:g} MiB pending"
    if pool.backend_patience_s != BACKEND_PATIENCE_S:
        waits = pool.backend_patience_s
        yield "no pause for a backend" if waits is None else f"waits {waits:g} s for a backend"


def _reduce_line(plan: Plan, reduce: Reduce) -> str:
    child, parent = plan.domains[reduce.child_domain].name, plan.domains[reduce.domain].name
    way = f"on_failure={reduce.on_failure.value}"
    if reduce.max_missing is not None:
        way += f", max_missing={reduce.max_missing}"
    return f"  {_names(plan, reduce.sources)}: {child} -> {parent}, {way}"


def _names(plan: Plan, ports: tuple[int, ...], sources: bool = False) -> str:
    if sources:
        ports = tuple(one for port in ports for one in _structure_sources(plan, port))
    return ", ".join(plan.ports[port].name for port in ports)


def _port_on(plan: Plan, port: int) -> str:
    return f"{plan.ports[port].name} on {plan.domains[plan.ports[port].domain].name}"
