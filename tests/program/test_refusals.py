"""Each declaration that the compiler refuses, with the user's line and the Domains' names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayorch_prefect.errors import ProgramError
from rayorch_prefect.program import F, Port, program, stage
from rayorch_prefect.program.plan import FilterOp, SourceOp, Where
from rayorch_prefect.program.tracing import Graph, trace
from rayorch_prefect.program.verify import check_acyclic, check_reached
from tests.program.toys import (
    Join,
    One,
    Other,
    Scaled,
    Two,
    assert_declined,
    assert_refused,
    declared,
    double,
    fetch,
)


class TestJoinsAcrossDomains:
    def test_call_with_an_ancestor(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return Join()(source, pages)  # <-

        assert_declined(declare, "'source'", "'page'", "F.broadcast('source', like='expand page')")

    def test_call_with_a_cousin(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            images = F.expand(Other()(source), domain="image")
            return Join()(pages, images)  # <-

        assert_declined(declare, "'page'", "'image'", "F.reduce both up to Domain 'source'")

    def test_filter(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return F.filter(pages, One()(source))  # <-

        assert_declined(declare, "F.filter", "'page'", "'source'")

    def test_coalesce(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return F.coalesce(source, pages)  # <-

        assert_declined(declare, "F.coalesce", "'page'", "'source'")

    def test_reduce_aligned(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            words = F.expand(Other()(pages), domain="word")
            return F.reduce_aligned(pages, words)  # <-

        assert_declined(declare, "F.reduce_aligned", "'page'", "'word'")


class TestStructure:
    def test_reduce_at_the_root(self) -> None:
        def declare(source: Port) -> object:
            return F.reduce(One()(source))  # <-

        assert_declined(declare, "no matching expand", "root Domain 'source'")

    def test_domain_name_twice(self) -> None:
        def declare(source: Port) -> object:
            F.expand(One()(source), domain="page")
            return F.expand(Other()(source), domain="page")  # <-

        assert_declined(declare, "a Domain 'page' already", "F.expand_aligned")

    def test_domain_name_of_the_root(self) -> None:
        def declare(source: Port) -> object:
            return F.expand(One()(source), domain="source")  # <-

        assert_declined(declare, "a Domain 'source' already")

    @pytest.mark.parametrize("name", ["", "  ", None, 3])
    def test_domain_name_that_is_none(self, name: Any) -> None:
        def declare(source: Port) -> object:
            return F.expand(One()(source), domain=name)  # <-

        assert_declined(declare, "domain must be a name", repr(name))

    def test_broadcast_up(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return F.broadcast(pages, like=source)  # <-

        assert_declined(declare, "'source'", "does not lie below Domain 'page'")

    def test_broadcast_to_a_sibling(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            images = F.expand(Other()(source), domain="image")
            return F.broadcast(pages, like=images)  # <-

        assert_declined(declare, "'image'", "does not lie below Domain 'page'")

    def test_aligned_of_two_calls(self) -> None:
        def declare(source: Port) -> object:
            return F.expand_aligned(One()(source), Other()(source), domain="page")  # <-

        assert_declined(declare, "outputs of one Call", "'One', 'Other'", "Domain 'source'")

    def test_aligned_of_structure(self) -> None:
        def declare(source: Port) -> object:
            a, b = Two()(source)
            return F.expand_aligned(a, F.filter(b, source), domain="page")  # <-

        assert_declined(declare, "outputs of one Call", "'filter Two[1]'")

    def test_aligned_of_nothing(self) -> None:
        def declare(source: Port) -> object:
            return F.reduce_aligned()  # <-

        assert_declined(declare, "at least one Port")

    def test_unknown_on_failure(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return F.reduce(pages, on_failure="ignore")  # <-

        assert_declined(declare, "'page'", "'fail', 'skip', 'keep'", "'ignore'")

    @pytest.mark.parametrize("way", ["fail", "keep"])
    def test_max_missing_without_skip(self, way: str) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return F.reduce(pages, on_failure=way, max_missing=1)  # <-

        assert_declined(declare, "'page'", "on_failure='skip'", way)

    @pytest.mark.parametrize("limit", [-1, -0.5, 1.5, True, "1", float("nan"), float("inf")])
    def test_max_missing_out_of_range(self, limit: Any) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return F.reduce(pages, on_failure="skip", max_missing=limit)  # <-

        assert_declined(declare, "'page'", "max_missing must be a count", repr(limit))

    def test_expand_of_kept_failures(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            kept = F.reduce(Other()(pages), on_failure="keep")
            return F.expand(F.coalesce(source, kept), domain="again")  # <-

        assert_declined(
            declare, "Domain 'source'", "on_failure='keep'", "children could be failures"
        )

    def test_deep_expand_of_kept_failures(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            words = F.expand(Other()(pages), domain="word")
            lists = F.reduce(F.reduce(words, on_failure="keep"))
            outer = F.expand(lists, domain="outer")
            return F.expand(outer, domain="inner")  # <-

        assert_declined(declare, "Domain 'page'", "on_failure='keep'")


class TestMasks:
    def test_reduced_list(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return F.filter(source, F.reduce(pages))  # <-

        assert_declined(declare, "Domain 'source'", "a list is not a boolean")

    def test_broadcast_of_a_reduced_list(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            return F.filter(pages, F.broadcast(F.reduce(pages), like=pages))  # <-

        assert_declined(declare, "Domain 'source'", "a list is not a boolean")

    def test_expanded_too(self) -> None:
        def declare(source: Port) -> object:
            both = One()(source)
            kept = F.filter(source, both)
            return kept, F.expand(both, domain="page")  # <-

        assert_declined(declare, "'One'", "Domain 'source'", "a list is not a boolean")

    def test_element_expanded_too(self) -> None:
        def declare(source: Port) -> object:
            element = F.expand(One()(source), domain="page")
            return F.filter(element, element), F.expand(element, domain="word")  # <-

        assert_declined(declare, "'One'", "a list is not a boolean")

    def test_the_source_expanded_too(self) -> None:
        def declare(source: Port) -> object:
            return F.filter(source, source), F.expand(source, domain="page")  # <-

        assert_declined(declare, "'source'", "a list is not a boolean")


class TestPortsOfOthers:
    def test_another_program(self) -> None:
        leaked: list[Port] = []

        @program
        def first(source: Port) -> object:
            leaked.append(F.expand(One()(source), domain="page"))
            return leaked[0]

        assert first.plan

        def declare(source: Port) -> object:
            return Join()(source, leaked[0])  # <-

        assert_declined(declare, "another Program", "'first'", "'declare'", "Domain 'page'")

    def test_another_trace_returned(self) -> None:
        leaked: list[Port] = []

        @program
        def first(source: Port) -> object:
            leaked.append(One()(source))
            return leaked[0]

        assert first.plan

        def declare(source: Port) -> object:  # <-
            return leaked[0]

        assert_declined(declare, "another Program", "'first'", "'source'")

    @pytest.mark.parametrize("value", [3, None, "x", [1, 2]])
    def test_plain_values(self, value: Any) -> None:
        def declare(source: Port) -> object:
            return Join()(source, value)  # <-

        assert_declined(declare, "stage Join: input 2 must be a Port", repr(value))

    def test_plain_values_to_a_function(self) -> None:
        def declare(source: Port) -> object:
            return double(3)  # <-

        assert_declined(declare, "stage double: input 1 must be a Port", "3 (int)")

    def test_plain_values_to_structure(self) -> None:
        def declare(source: Port) -> object:
            return F.filter(source, True)  # type: ignore[arg-type]  # <-

        assert_declined(declare, "F.filter: mask must be a Port", "True (bool)")

    def test_stage_outside_a_program(self) -> None:
        def action() -> object:
            return One()([1, 2])  # <-

        assert_refused(action, "stage One is used outside a Program", "One.target")

    def test_structure_outside_a_program(self) -> None:
        leaked: list[Port] = []
        assert program(lambda source: leaked.append(source) or source).plan  # type: ignore[func-returns-value]

        def action() -> object:
            return F.expand(leaked[0], domain="page")  # <-

        assert_refused(action, "F.expand is used outside a Program")

    def test_leaked_port_to_a_function_stage(self) -> None:
        leaked: list[Port] = []
        assert program(lambda source: leaked.append(source) or source).plan  # type: ignore[func-returns-value]

        def action() -> object:
            return double(leaked[0])  # <-

        assert_refused(action, "stage double is used outside a Program")


class TestLookingIntoAPort:
    def test_truth(self) -> None:
        def declare(source: Port) -> object:
            return source if source else None  # <-

        assert_declined(declare, "decides on Port 'source'", "Domain 'source'", "F.filter")

    def test_loop(self) -> None:
        def declare(source: Port) -> object:
            return [One()(row) for row in source]  # <-

        assert_declined(declare, "loops over Port 'source'", "F.expand")

    def test_index(self) -> None:
        def declare(source: Port) -> object:
            return source[0]  # <-

        assert_declined(declare, "indexes Port 'source'", "outputs=k")

    def test_length(self) -> None:
        def declare(source: Port) -> object:
            return len(source)  # <-

        assert_declined(declare, "length of Port 'source'")

    def test_membership(self) -> None:
        def declare(source: Port) -> object:
            return 3 in source  # <-

        assert_declined(declare, "searches Port 'source'")


class TestOutputs:
    def test_nothing(self) -> None:
        def declare(source: Port) -> None:  # <-
            One()(source)

        assert_declined(declare, "declare returns nothing")

    @pytest.mark.parametrize("empty", [(), []])
    def test_empty(self, empty: object) -> None:
        def declare(source: Port) -> object:  # <-
            return empty

        assert_declined(declare, f"an empty {type(empty).__name__}")

    def test_dict(self) -> None:
        def declare(source: Port) -> object:  # <-
            return {"text": One()(source)}

        assert_declined(declare, "output 1 must be a Port", "(dict)", "tuple or list of Ports")

    def test_not_a_port_among_ports(self) -> None:
        def declare(source: Port) -> object:  # <-
            return source, 7

        assert_declined(declare, "output 2 must be a Port", "7 (int)")

    def test_calls_in_vain_are_all_named(self) -> None:
        def declare(source: Port) -> object:
            One()(source)  # <-
            pages = F.expand(Other()(source), domain="page")
            double(pages)
            return source

        message = assert_declined(
            declare, "Call One on Domain 'source'", "Call double on Domain 'page'"
        )
        assert "Call Other on Domain 'source'" in message
        assert len(message.splitlines()) == 3

    def test_a_call_used_only_for_its_domain_position(self) -> None:
        def declare(source: Port) -> object:
            pages = F.expand(One()(source), domain="page")
            read = Other()(pages)  # <-
            return F.broadcast(source, like=read)

        assert_declined(declare, "no output derives from Call Other on Domain 'page'")

    def test_call_without_inputs(self) -> None:
        def declare(source: Port) -> object:
            return source, Join()()  # <-

        assert_declined(declare, "no path from the root Domain 'source'")

    def test_output_that_the_root_does_not_reach(self) -> None:
        graph, _ = trace("odd", lambda source: source, Where("odd.py", 1))
        stray = graph.add_port(0, SourceOp(), "stray", Where("odd.py", 7))
        with pytest.raises(ProgramError, match=r"^odd\.py:7: no path .* 'source' .* 'stray'"):
            check_reached(graph, (stray.id,))

    def test_cycle(self) -> None:
        graph: Graph
        graph, _ = trace("odd", lambda source: F.filter(source, source), Where("odd.py", 1))
        looped = replace(graph.ports[1], op=FilterOp(1, 0), where=Where("odd.py", 8))
        graph.ports[1] = looped
        with pytest.raises(ProgramError, match=r"^odd\.py:8: .* cycle: 'filter source'.*'source'"):
            check_acyclic(graph)


class TestPrograms:
    def test_two_parameters(self) -> None:
        def action() -> object:
            @program  # type: ignore[arg-type]  # pyright: ignore # <-
            def two(source: Port, other: Port) -> object:
                return source

            return two

        assert_refused(action, "two(source: 'Port', other: 'Port')", "exactly one parameter")

    def test_keyword_parameter(self) -> None:
        with pytest.raises(ProgramError, match="exactly one parameter"):
            program(lambda *, source: source)  # type: ignore[misc, arg-type]

    def test_async(self) -> None:
        async def declare(source: Port) -> object:
            return source

        with pytest.raises(ProgramError, match="neither async nor a generator"):
            program(declare)

    def test_not_a_function(self) -> None:
        def action() -> object:
            return program(One)  # type: ignore[arg-type]  # <-

        assert_refused(action, "expected a function", "<stage One>")

    def test_version(self) -> None:
        def action() -> object:
            return program(version=2)  # type: ignore[call-overload]  # <-

        assert_refused(action, "version must be a text", "2 (int)")

    def test_called_inside_another(self) -> None:
        inner = program(lambda source: source)

        def declare(source: Port) -> object:
            return inner(source)  # <-

        assert_declined(declare, "inside another Program")

    def test_called_outside(self) -> None:
        inner = program(lambda source: source)

        def action() -> object:
            return inner([1])  # <-

        assert_refused(action, "run it by Engine")

    def test_its_own_exceptions_pass_through(self) -> None:
        def declare(source: Port) -> object:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            assert program(declare).plan

    def test_publishable(self) -> None:
        def several(source: Port) -> object:  # <-
            return source, One()(source)

        def below(source: Port) -> object:  # <-
            return F.expand(source, domain="page")

        for declare, words in ((several, "has 2 outputs"), (below, "Domain 'page'")):
            declared = program(declare)
            with pytest.raises(ProgramError, match=words) as caught:
                declared.require_publishable()
            assert str(caught.value).startswith(f"{__file__}:{declared.where.line}: ")
        program(lambda source: One()(source)).require_publishable()


class TestStages:
    def test_port_to_the_constructor(self) -> None:
        def declare(source: Port) -> object:
            return declared(One)(source)  # <-

        assert_declined(declare, "`One()(port)`")

    def test_wrong_constructor_arguments(self) -> None:
        def action() -> object:
            return declared(Scaled)()  # <-

        assert_refused(action, "stage Scaled", "constructor", "'by'")

    def test_too_many_inputs(self) -> None:
        def declare(source: Port) -> object:
            return double(source, source)  # <-

        assert_declined(declare, "stage double does not take 2 inputs")

    def test_inputs_by_name(self) -> None:
        def declare(source: Port) -> object:
            return One()(rows=source)  # <-

        assert_declined(declare, "stage One", "by position", "rows")

    @pytest.mark.parametrize(
        ("option", "value", "right"),
        [
            ("batch_size", 0, "at least 1"),
            ("batch_size", True, "at least 1"),
            ("batch_size", 2.0, "whole number"),
            ("replicas", 0, "at least 1"),
            ("outputs", 0, "at least 1"),
            ("retry_budget", 0, "at least 1"),
            ("rowwise", 1, "True, False or None"),
            ("num_cpus", -1, "at least 0"),
            ("num_cpus", float("nan"), "finite"),
            ("num_gpus", float("inf"), "finite"),
            ("num_gpus", "1", "finite number"),
            ("num_cpus", True, "finite number"),
            ("resources", 3, "a mapping"),
            ("resources", {"CPU": 1}, "num_cpus"),
            ("resources", {"disk": -1}, "at least 0"),
            ("runtime_env", "env.json", "a mapping"),
            ("label_selector", {1: "eu"}, "a mapping of label names"),
            ("label_selector", {"region": 1}, "a text such as"),
            ("batch_limit_s", 0, "more than 0 seconds"),
            ("batch_limit_s", -1, "at least 0"),
            ("batch_limit_s", float("inf"), "finite"),
            ("batch_limit_s", "3", "finite number"),
            ("recycle_after_batches", 0, "at least 1"),
            ("recycle_above_mb", 1.5, "whole number"),
            ("memory_limit_mb", 255, "at least 256 MiB"),
            ("memory_limit_mb", 512.0, "whole number"),
            ("memory_limit_mb", True, "whole number"),
            ("row_limit_s", 3, "for row-wise stages"),
            ("node_setup", "fetch", "takes no arguments"),
            ("node_setup", fetch, "takes no arguments"),
            ("node_setup", int, "takes no arguments"),
        ],
    )
    def test_options(self, option: str, value: object, right: str) -> None:
        options: Any = {option: value}

        def action() -> object:
            return declared(One).options(**options)  # <-

        assert_refused(action, "stage One", option, right)

    def test_a_row_limit_of_a_function_that_gets_whole_batches(self) -> None:
        def action() -> object:
            return double.options(row_limit_s=3).options(rowwise=False)  # <-

        assert_refused(action, "stage double", "row_limit_s", "batch_limit_s")

    def test_unknown_option(self) -> None:
        def action() -> object:
            return stage(batchsize=3)(len)  # type: ignore[call-overload]  # <-

        assert_refused(action, "stage len", "batchsize", "Did you mean batch_size?", "retry_budget")

    def test_stage_of_a_stage(self) -> None:
        def action() -> object:
            return stage(One)  # <-

        assert_refused(action, "<stage One> is a stage already", ".options(")

    def test_not_callable(self) -> None:
        def action() -> object:
            return stage(3)  # type: ignore[call-overload]  # <-

        assert_refused(action, "a class or a function, not 3 (int)")

    def test_class_without_call(self) -> None:
        class Silent:
            pass

        def action() -> object:
            return stage(Silent)  # <-

        assert_refused(action, "Silent", "no __call__")

    def test_async_class_in_batches(self) -> None:
        class Later:
            async def __call__(self, rows: list[Any]) -> list[Any]:
                return rows

        def action() -> object:
            return stage(Later, rowwise=False)  # <-

        assert_refused(action, "Later", "row-wise")

    def test_concurrency_of_a_plain_stage(self) -> None:
        def action() -> object:
            return double.options(concurrency=8)  # <-

        assert_refused(action, "stage double", "concurrency=8 is for async stages", "replicas")

    def test_concurrency_in_batches(self) -> None:
        def action() -> object:
            return fetch.options(concurrency=8, batch_size=4)  # <-

        assert_refused(action, "stage fetch", "concurrency=8", "batch_size=4 does not go with it")

    def test_no_concurrency(self) -> None:
        def action() -> object:
            return fetch.options(concurrency=0)  # <-

        assert_refused(action, "stage fetch", "concurrency", "at least 1", "0 (int)")

    def test_async_function_in_batches(self) -> None:
        def action() -> object:
            return fetch.options(rowwise=False)  # <-

        assert_refused(action, "fetch", "row-wise")
