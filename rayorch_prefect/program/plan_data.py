"""The Plan as plain data: Ports and Calls by number, Domains by name."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from rayorch_prefect.program.plan import (
    BroadcastOp,
    Call,
    CallOutputOp,
    CoalesceOp,
    Domain,
    ExpandOp,
    FilterOp,
    Plan,
    Pool,
    Port,
    Reduce,
    ReduceOp,
    SourceOp,
)
from rayorch_prefect.program.targets import identity

_OPS = {
    SourceOp: "source",
    CallOutputOp: "call",
    ExpandOp: "expand",
    ReduceOp: "reduce",
    FilterOp: "filter",
    CoalesceOp: "coalesce",
    BroadcastOp: "broadcast",
}

# Arguments of constructors, and values of a runtime_env, may be secrets.
_NOT_SHOWN = frozenset({"target", "args", "kwargs"})


def plan_data(plan: Plan) -> dict[str, Any]:
    """All of the Plan but for constructor arguments and the values of runtime_envs."""
    names = [domain.name for domain in plan.domains]
    return {
        "program": plan.name,
        "version": plan.version,
        "fingerprint": plan.fingerprint,
        "source_hash": plan.source_hash,
        "domains": [_domain(each, names) for each in plan.domains],
        "ports": [_port(each, names) for each in plan.ports],
        "calls": [_call(each, names) for each in plan.calls],
        "pools": [_pool(each) for each in plan.pools],
        "reduces": [_reduce(each, names) for each in plan.reduces],
        "outputs": list(plan.output_ports),
    }


def _domain(domain: Domain, names: list[str]) -> dict[str, Any]:
    above = None if domain.parent is None else names[domain.parent]
    return {**asdict(domain), "parent": above}


def _port(port: Port, names: list[str]) -> dict[str, Any]:
    op = {"kind": _OPS[type(port.op)], **asdict(port.op)}
    return {**asdict(port), "domain": names[port.domain], "op": op, "where": str(port.where)}


def _call(call: Call, names: list[str]) -> dict[str, Any]:
    return {
        **asdict(call),
        "domain": names[call.domain],
        "chunked": [names[domain] for domain in call.chunked],
        "where": str(call.where),
    }


def _reduce(reduce: Reduce, names: list[str]) -> dict[str, Any]:
    return {
        **asdict(reduce),
        "domain": names[reduce.domain],
        "child_domain": names[reduce.child_domain],
        "where": str(reduce.where),
    }


def _pool(pool: Pool) -> dict[str, Any]:
    shown = [each.name for each in fields(pool) if each.name not in _NOT_SHOWN]
    return {
        **{name: getattr(pool, name) for name in shown},
        "resources": dict(pool.resources),
        "runtime_env": sorted(pool.runtime_env),
        "label_selector": dict(pool.label_selector),
        "node_setup": pool.node_setup and identity(pool.node_setup.resolve()),
    }
