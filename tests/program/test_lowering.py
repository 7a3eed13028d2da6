"""What each declaration becomes in the Plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rayorch_prefect.program import F, Plan, Port, program, stage
from rayorch_prefect.program.plan import (
    BroadcastOp,
    CallOutputOp,
    CoalesceOp,
    ExpandOp,
    FilterOp,
    OnFailure,
    ReduceOp,
    SourceOp,
)
from tests.program.toys import Join, One, Other, Scaled, Two, declared, double, fetch


def compiled(declare: Callable[[Port], object]) -> Plan:
    plan = program(declare).plan
    check_dense(plan)
    return plan


def check_dense(plan: Plan) -> None:
    """The promises of the Plan's numbering: dense ids, in topological order."""
    for records in (plan.domains, plan.ports, plan.calls, plan.reduces, plan.pools):
        assert [record.id for record in records] == list(range(len(records)))
    assert isinstance(plan.ports[0].op, SourceOp)
    assert plan.domains[0].parent is None
    for call in plan.calls:
        assert all(port < out for port in call.inputs for out in call.outputs)
        assert {plan.ports[port].domain for port in call.inputs + call.outputs} == {call.domain}
        for index, port in enumerate(call.outputs):
            assert plan.ports[port].op == CallOutputOp(call.id, index)
    for reduce in plan.reduces:
        for index, port in enumerate(reduce.results):
            assert plan.ports[port].op == ReduceOp(reduce.id, index)
            assert plan.ports[port].domain == reduce.domain
            assert reduce.sources[index] < port
        assert plan.domains[reduce.child_domain].parent == reduce.domain
    for domain in plan.domains[1:]:
        assert domain.parent is not None
        assert domain.parent < domain.id
        assert domain.depth == plan.domains[domain.parent].depth + 1
        assert domain.expands
        assert all(isinstance(plan.ports[port].op, ExpandOp) for port in domain.expands)


def test_source_alone() -> None:
    plan = compiled(lambda source: source)
    assert (len(plan.ports), plan.calls, plan.pools) == (1, (), ())
    assert plan.output_ports == (0,)
    assert plan.single_output


def test_expand_and_reduce() -> None:
    def declare(source: Port) -> object:
        pages = F.expand(One()(source), domain="page")
        return Join()(source, F.reduce(Other()(pages)))

    plan = compiled(declare)
    assert [(domain.name, domain.parent, domain.expands) for domain in plan.domains] == [
        ("source", None, ()),
        ("page", 0, (2,)),
    ]
    assert [call.inputs for call in plan.calls] == [(0,), (2,), (0, 4)]
    assert plan.ports[2].op == ExpandOp(1)
    (reduce,) = plan.reduces
    assert (reduce.sources, reduce.results, reduce.domain, reduce.child_domain) == (
        (3,),
        (4,),
        0,
        1,
    )
    assert reduce.on_failure is OnFailure.FAIL
    assert plan.calls[0].list_depths == (1,)
    assert [pool.batch_size for pool in plan.pools] == [1, 4, 1]


def test_wheres_are_the_users_lines() -> None:
    def declare(source: Port) -> object:
        pages = F.expand(One()(source), domain="page")
        return F.reduce(pages)

    plan, first = compiled(declare), declare.__code__.co_firstlineno
    assert plan.calls[0].where.file == __file__
    assert plan.calls[0].where.line == plan.ports[2].where.line == first + 1
    assert plan.reduces[0].where.line == first + 2


def test_reduce_options_and_several_outputs() -> None:
    def declare(source: Port) -> object:
        a, b = F.expand_aligned(*Two()(source), domain="page")
        lists = F.reduce_aligned(a, b, on_failure="skip", max_missing=0.5)
        return [*lists, F.reduce(a, on_failure="keep")]

    plan = compiled(declare)
    assert plan.calls[0].list_depths == (1, 1)
    assert plan.domains[1].expands == (3, 4)
    assert [(one.sources, one.on_failure, one.max_missing) for one in plan.reduces] == [
        ((3, 4), OnFailure.SKIP, 0.5),
        ((3,), OnFailure.KEEP, None),
    ]
    assert len(plan.output_ports) == 3
    assert not plan.single_output


def test_filter_and_coalesce() -> None:
    def declare(source: Port) -> object:
        keep = One()(source)
        return F.coalesce(F.filter(source, keep), Other()(source))

    plan = compiled(declare)
    assert plan.ports[2].op == FilterOp(0, 1)
    assert plan.ports[4].op == CoalesceOp((2, 3))
    assert [call.masks for call in plan.calls] == [(True,), (False,)]
    assert not plan.source_is_mask


def test_broadcast_over_levels_shares_its_steps() -> None:
    def declare(source: Port) -> object:
        pages = F.expand(One()(source), domain="page")
        words = F.expand(Other()(pages), domain="word")
        images = F.expand(Two()(pages)[0], domain="image")
        low = Join()(words, F.broadcast(source, like=words))
        again = Join()(words, F.broadcast(source, like=words))
        beside = Join()(images, F.broadcast(source, like=images))
        return low, again, beside, F.broadcast(pages, like=pages)

    plan = compiled(declare)
    steps = [port for port in plan.ports if isinstance(port.op, BroadcastOp)]
    assert [plan.domains[port.domain].name for port in steps] == ["page", "word", "image"]
    assert steps[0].op == BroadcastOp(0)
    assert steps[1].op == steps[2].op == BroadcastOp(steps[0].id)
    assert plan.output_ports[3] == plan.domains[1].expands[0]


def test_what_no_output_needs_is_left_out() -> None:
    def declare(source: Port) -> object:
        first, _ = Two()(source)
        unused = F.expand(first, domain="unused")
        F.expand(F.filter(unused, unused), domain="below")
        F.reduce(unused)
        F.coalesce(source, first)
        return F.reduce(F.expand(source, domain="page"))

    with pytest.raises(Exception, match="no output derives from Call Two"):
        compiled(declare)

    def used(source: Port) -> object:
        first, _ = Two()(source)
        F.reduce(F.expand(first, domain="unused"))
        F.broadcast(source, like=F.expand(source, domain="other"))
        return first

    plan = compiled(used)
    assert [domain.name for domain in plan.domains] == ["source"]
    assert [port.name for port in plan.ports] == ["source", "Two[0]", "Two[1]"]
    assert plan.reduces == ()
    assert plan.calls[0].list_depths == (0, 0)
    assert plan.source_list_depth == 0


def test_a_domain_that_only_a_broadcast_uses_is_kept() -> None:
    def declare(source: Port) -> object:
        pages = F.expand(One()(source), domain="page")
        return F.reduce(F.broadcast(source, like=pages))

    plan = compiled(declare)
    assert [call.stage for call in plan.calls] == ["One"]
    assert plan.domains[1].expands == (2,)


def test_an_aligned_sibling_is_kept() -> None:
    def declare(source: Port) -> object:
        a, _ = F.expand_aligned(*Two()(source), domain="page")
        return F.reduce(a)

    plan = compiled(declare)
    assert len(plan.domains[1].expands) == 2
    assert plan.calls[0].list_depths == (1, 1)


def test_side_by_side_meet_at_the_parent() -> None:
    def declare(source: Port) -> object:
        pages = F.reduce(One()(F.expand(Other()(source), domain="page")))
        images = F.reduce(One()(F.expand(Other()(source), domain="image")))
        return Join()(pages, images)

    plan = compiled(declare)
    assert [(domain.name, domain.parent) for domain in plan.domains[1:]] == [
        ("page", 0),
        ("image", 0),
    ]
    assert len(plan.pools) == 5


class TestListDepths:
    def test_nested_lists_of_one_output(self) -> None:
        plan = compiled(
            lambda source: F.expand(F.expand(One()(source), domain="page"), domain="word")
        )
        assert plan.calls[0].list_depths == (2,)

    def test_mask_inside_a_list(self) -> None:
        def declare(source: Port) -> object:
            values, masks = F.expand_aligned(*Two()(source), domain="page")
            return F.filter(values, masks)

        plan = compiled(declare)
        assert plan.calls[0].list_depths == (1, 1)
        assert plan.calls[0].masks == (False, True)

    def test_mask_in_a_list_that_is_expanded_again_later(self) -> None:
        def declare(source: Port) -> object:
            flags = One()(source)
            element = F.expand(flags, domain="page")
            return F.filter(element, element), F.expand(flags, domain="again")

        plan = compiled(declare)
        assert (plan.calls[0].list_depths, plan.calls[0].masks) == ((1,), (True,))

    def test_through_aliases(self) -> None:
        def declare(source: Port) -> object:
            a, b, c = One()(source), Other()(source), One()(source)
            mixed = F.coalesce(F.filter(a, c), b)
            low = F.expand(One()(source), domain="page")
            return F.expand(F.broadcast(mixed, like=low), domain="word")

        plan = compiled(declare)
        assert [call.list_depths for call in plan.calls] == [(1,), (1,), (0,), (1,)]
        assert [call.masks for call in plan.calls] == [(False,), (False,), (True,), (False,)]

    def test_expand_of_a_reduce_asks_the_members(self) -> None:
        def declare(source: Port) -> object:
            pages = Other()(F.expand(One()(source), domain="page"))
            again = F.expand(F.reduce(pages), domain="again")
            return F.filter(again, again)

        plan = compiled(declare)
        assert [call.list_depths for call in plan.calls] == [(1,), (0,)]
        assert [call.masks for call in plan.calls] == [(False,), (True,)]

    def test_two_levels_of_a_reduce_reach_the_members_lists(self) -> None:
        def declare(source: Port) -> object:
            pages = Other()(F.expand(One()(source), domain="page"))
            return F.expand(F.expand(F.reduce(pages), domain="again"), domain="word")

        plan = compiled(declare)
        assert [call.list_depths for call in plan.calls] == [(1,), (1,)]

    def test_the_source_itself(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(source, domain="page")
            return F.filter(pages, pages)

        plan = compiled(declare)
        assert (plan.source_list_depth, plan.source_is_mask) == (1, True)

    def test_keep_is_fine_where_nobody_takes_it_apart(self) -> None:
        def declare(source: Port) -> object:
            words = F.expand(F.expand(One()(source), domain="page"), domain="word")
            kept = F.reduce(words, on_failure="keep")
            return F.expand(F.reduce(kept), domain="again")

        assert compiled(declare).calls[0].list_depths == (2,)


class TestPools:
    def test_one_stage_object_is_one_pool(self) -> None:
        def declare(source: Port) -> object:
            one = One()
            return one(one(source))

        plan = compiled(declare)
        assert [call.pool for call in plan.calls] == [0, 0]
        assert len(plan.pools) == 1

    def test_two_stage_objects_are_two_pools(self) -> None:
        plan = compiled(lambda source: One()(One()(source)))
        assert [call.pool for call in plan.calls] == [0, 1]

    def test_a_function_shares_its_pool(self) -> None:
        plan = compiled(lambda source: double()(double(double.options(replicas=2)(source))))
        assert [call.pool for call in plan.calls] == [0, 1, 1]
        assert [pool.replicas for pool in plan.pools] == [2, 1]

    def test_options_reach_the_pool(self) -> None:
        @stage(replicas=3, rowwise=True, num_gpus=0.5, resources={"disk": 1}, retry_budget=1)
        class Picked(Scaled):  # pyright: ignore[reportGeneralTypeIssues]
            pass

        pool = compiled(lambda source: Picked(by=2)(source)).pools[0]
        assert (pool.stage, pool.is_class, pool.args, pool.kwargs) == (
            "Picked",
            True,
            (),
            {"by": 2},
        )
        assert (pool.replicas, pool.rowwise, pool.outputs, pool.retry_budget) == (3, True, 1, 1)
        assert (pool.num_cpus, pool.num_gpus, pool.resources) == (0.1, 0.5, {"disk": 1.0})
        assert pool.target.resolve() is declared(Picked).target

    def test_kinds(self) -> None:
        plan = compiled(lambda source: One()(fetch(double(source))))
        assert [(pool.is_class, pool.rowwise) for pool in plan.pools] == [
            (False, True),
            (False, True),
            (True, False),
        ]


def test_functions_are_plain_outside_a_program() -> None:
    assert double(4) == 8
    assert declared(One).target()([1]) == [1]
    assert Scaled.FACTOR == 10


def test_plan_is_compiled_once_and_lazily() -> None:
    traced: list[int] = []

    @program(version="3")
    def lazy(source: Port) -> object:
        traced.append(1)
        return source

    assert traced == []
    assert lazy.plan is lazy.plan
    assert traced == [1]
    assert (lazy.name, lazy.version, lazy.plan.version) == ("lazy", "3", "3")
    assert lazy.module_path.startswith("tests.program.test_lowering:")


def test_traces_in_threads_do_not_meet() -> None:
    gate = threading.Barrier(2, timeout=10)
    plans: list[Plan] = []

    def compile_one(count: int) -> None:
        @program
        def chained(source: Port) -> object:
            port = source
            for _ in range(count):
                port = double(port)
                gate.wait()
            return port

        plans.append(chained.plan)

    threads = [threading.Thread(target=compile_one, args=(5,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(plan.calls) for plan in plans] == [5, 5]


def test_the_example_of_the_readme() -> None:
    @stage(batch_size=1, replicas=2)
    class Render:
        def __call__(self, sources: Any) -> Any: ...

    @stage(batch_size=16, replicas=1, num_gpus=1)
    class Read:
        def __call__(self, pages: Any) -> Any: ...

    @stage
    class Assemble:
        def __call__(self, sources: Any, pages: Any) -> Any: ...

    @program(version="1")
    def documents(source: Port) -> object:
        pages = F.expand(Render()(source), domain="page")
        return Assemble()(source, F.reduce(Read()(pages)))

    check_dense(documents.plan)
    documents.require_publishable()
    assert [call.stage for call in documents.plan.calls] == ["Render", "Read", "Assemble"]
