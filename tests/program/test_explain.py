"""The Plan as text."""

from __future__ import annotations

import gc
from typing import Any

from rayorch_prefect.program import F, Port, program, stage


@stage(batch_size=1, replicas=2, batch_limit_s=60, memory_limit_mb=512)
class Render:
    def __call__(self, sources: Any) -> Any:
        return sources


@stage(batch_size=16, num_gpus=1, outputs=2, resources={"disk": 2})
class Read:
    def __call__(self, pages: Any) -> Any:
        return pages, pages


@stage(
    retry_budget=1,
    runtime_env={"env_vars": {"TOKEN": "of nobody else"}},
    label_selector={"region": "in(eu,us)", "cpu": "!arm"},
    node_setup=gc.collect,
    row_limit_s=2.5,
    recycle_after_batches=100,
    recycle_above_mb=2000,
)
def tidy(text: str) -> str:
    return text


@stage
class Assemble:
    def __call__(self, sources: Any, texts: Any) -> Any:
        return sources


@program(version="1")
def documents(source: Port) -> object:
    pages = F.expand(Render()(source), domain="page")
    text, wanted = Read()(pages)
    kept = tidy(F.filter(tidy(text), wanted))
    return Assemble()(source, F.reduce(kept, on_failure="skip", max_missing=0.5))


GOLDEN = """\
Program documents, version 1
fingerprint {fingerprint}

Domains
  source: the source rows
    page: the elements of Render

Calls, in order
  #0 Render on source
      reads source
      batch size 1, whole batches, pool 0
      gives Render (lists of values), read by expand page
  #1 Read on page
      reads expand page
      batch size 16, whole batches, pool 1
      gives Read[0], read by #2 tidy
      gives Read[1] (true or false), read by filter tidy
  #2 tidy on page
      reads Read[0]
      batch size 1, row by row, pool 2
      gives tidy, read by filter tidy
  #3 tidy on page
      reads filter tidy
      batch size 1, row by row, pool 2
      gives tidy, read by reduce tidy
  #4 Assemble on source
      reads source, reduce tidy
      batch size 1, whole batches, pool 3
      gives Assemble, read by the output

Pools
  0 Render: 2 workers, 0.1 CPU each, 3 tries, Call #0
      at most 60 s a batch, at most 512 MiB more than when built
  1 Read: 1 worker, 0.1 CPU + 1 GPU + 2 disk, 3 tries, Call #1
  2 tidy: 1 worker, 0.1 CPU, 1 try, shared by Calls #2, #3
      sets each node up once: gc:collect
      at most 2.5 s a row, a new worker after 100 batches, a new worker above 2000 MiB
      on nodes with cpu=!arm, region=in(eu,us)
      in a runtime_env of its own: env_vars
  3 Assemble: 1 worker, 0.1 CPU, 3 tries, Call #4

Reduces
  tidy: page -> source, on_failure=skip, max_missing=0.5

Outputs
  Assemble on source
"""


def test_golden() -> None:
    plan = documents.plan
    assert plan.describe() == GOLDEN.format(fingerprint=plan.fingerprint)


def test_program_without_calls() -> None:
    text = program(lambda source: source).plan.describe()
    assert "Calls" not in text
    assert text.endswith("Outputs\n  source on source\n")
