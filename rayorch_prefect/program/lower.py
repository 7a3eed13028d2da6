"""Lowering: a verified trace becomes the Plan, without what no output needs, numbered densely."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rayorch_prefect.program import plan
from rayorch_prefect.program.chunking import chunked_domains
from rayorch_prefect.program.demands import Shape, Shapes, shapes
from rayorch_prefect.program.fingerprint import fingerprint, source_hash
from rayorch_prefect.program.plan import (
    BroadcastOp,
    CallOutputOp,
    CoalesceOp,
    ExpandOp,
    FilterOp,
    Op,
    Plan,
    ReduceOp,
)
from rayorch_prefect.program.stages import ConfiguredStage
from rayorch_prefect.program.targets import StageTarget
from rayorch_prefect.program.tracing import Graph, TracedCall
from rayorch_prefect.program.verify import Live


def lower(
    graph: Graph, live: Live, outputs: tuple[int, ...], *, single_output: bool, version: str
) -> Plan:
    """The Plan of a verified trace."""
    numbers = _Numbers(graph, live)
    domains, ports = numbers.lowered_domains(), numbers.lowered_ports()
    reduces = numbers.lowered_reduces()
    used = _pools_of(numbers.calls)
    demanded = shapes(domains, ports, reduces)
    source = demanded.get(0, Shape())
    unsealed = Plan(
        name=graph.program,
        version=version,
        domains=domains,
        ports=ports,
        calls=numbers.lowered_calls(used, demanded, domains, ports),
        reduces=reduces,
        pools=tuple(_pool(number, stage) for number, stage in enumerate(used)),
        output_ports=tuple(numbers.port[port] for port in outputs),
        single_output=single_output,
        fingerprint="",
        source_hash="",
        source_list_depth=source.depth,
        source_is_mask=source.mask,
    )
    return replace(unsealed, fingerprint=fingerprint(unsealed), source_hash=source_hash(unsealed))


def _dense(ids: Iterable[int]) -> dict[int, int]:
    # The order of a trace is topological, so dense numbers in that order are too.
    return {old: new for new, old in enumerate(sorted(ids))}


def _pools_of(calls: Iterable[TracedCall]) -> list[ConfiguredStage]:
    """The stage objects that are used, each once, by first use."""
    return list({id(call.used): call.used for call in calls}.values())


def _pool(number: int, used: ConfiguredStage) -> plan.Pool:
    stage, settings = used.stage, used.stage.settings
    return plan.Pool(
        id=number,
        stage=stage.name,
        target=StageTarget.of(stage.target),
        is_class=stage.is_class,
        args=used.args,
        kwargs=used.kwargs,
        batch_size=settings.batch_size,
        replicas=settings.replicas,
        rowwise=stage.rowwise,
        outputs=settings.outputs,
        retry_budget=settings.retry_budget,
        batch_limit_s=settings.batch_limit_s,
        row_limit_s=settings.row_limit_s,
        memory_limit_mb=settings.memory_limit_mb,
        recycle_after_batches=settings.recycle_after_batches,
        recycle_above_mb=settings.recycle_above_mb,
        backend_patience_s=settings.backend_patience_s,
        concurrency=settings.concurrency,
        linger_s=settings.linger_s,
        max_pending=settings.max_pending,
        max_pending_mb=settings.max_pending_mb,
        num_cpus=settings.num_cpus,
        num_gpus=settings.num_gpus,
        resources=settings.resources,
        runtime_env=settings.runtime_env,
        label_selector=settings.label_selector,
        node_setup=StageTarget.of(settings.node_setup) if settings.node_setup else None,
    )


class _Numbers:
    """Trace ids to Plan ids, and the records rewritten by them."""

    def __init__(self, graph: Graph, live: Live) -> None:
        self._graph = graph
        self.domain = _dense(live.domains)
        self.port = _dense(live.ports)
        self.call = _dense(live.calls)
        self.reduce = _dense(live.reduces)
        self.calls = [graph.calls[old] for old in self.call]

    def _ports(self, old: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.port[port] for port in old)

    def lowered_domains(self) -> tuple[plan.Domain, ...]:
        return tuple(
            replace(
                self._graph.domains[old],
                id=new,
                parent=None if new == 0 else self.domain[self._graph.domains[old].parent or 0],
                expands=self._ports(self._graph.domains[old].expands),
            )
            for old, new in self.domain.items()
        )

    def lowered_ports(self) -> tuple[plan.Port, ...]:
        records = [(self._graph.ports[old], new) for old, new in self.port.items()]
        return tuple(
            replace(record, id=new, domain=self.domain[record.domain], op=self._op(record.op))
            for record, new in records
        )

    def lowered_reduces(self) -> tuple[plan.Reduce, ...]:
        records = [(self._graph.reduces[old], new) for old, new in self.reduce.items()]
        return tuple(
            replace(
                record,
                id=new,
                domain=self.domain[record.domain],
                child_domain=self.domain[record.child_domain],
                sources=self._ports(record.sources),
                results=self._ports(record.results),
            )
            for record, new in records
        )

    def lowered_calls(
        self,
        used: list[ConfiguredStage],
        demanded: Shapes,
        domains: tuple[plan.Domain, ...],
        ports: tuple[plan.Port, ...],
    ) -> tuple[plan.Call, ...]:
        pools = {id(stage): number for number, stage in enumerate(used)}
        calls: list[plan.Call] = []
        for new, call in enumerate(self.calls):
            outputs = self._ports(call.outputs)
            asked = [demanded.get(port, Shape()) for port in outputs]
            in_chunks = call.used.stage.yields and all(shape.depth for shape in asked)
            calls.append(
                plan.Call(
                    id=new,
                    stage=call.used.stage.name,
                    domain=self.domain[call.domain],
                    inputs=self._ports(call.inputs),
                    outputs=outputs,
                    list_depths=tuple(shape.depth for shape in asked),
                    masks=tuple(shape.mask for shape in asked),
                    pool=pools[id(call.used)],
                    where=call.where,
                    chunked=chunked_domains(domains, ports, outputs) if in_chunks else (),
                )
            )
        return tuple(calls)

    def _op(self, op: Op) -> Op:
        match op:
            case CallOutputOp(call=call):
                return replace(op, call=self.call[call])
            case ReduceOp(reduce=reduce):
                return replace(op, reduce=self.reduce[reduce])
            case FilterOp(source=source, mask=mask):
                return FilterOp(self.port[source], self.port[mask])
            case CoalesceOp(sources=sources):
                return CoalesceOp(self._ports(sources))
            case ExpandOp(source=source):
                return ExpandOp(self.port[source])
            case BroadcastOp(source=source):
                return BroadcastOp(self.port[source])
            case _:
                return op
