"""An upload task of one's own: results go into a database, a row a source, not to S3.

The ledger, the manifest and the outcome of each source stay ours; they lie under the destination.

    rayorch-prefect run --program examples.word_count:word_count \\
        --upload-task examples.own_upload:into_database \\
        --source s3://bucket/in/ --destination s3://bucket/records/
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from hashlib import sha256

from prefect import flow, task
from prefect.client.schemas.objects import State

from examples.word_count import word_count
from rayorch_prefect import Artifact, WholeParent
from rayorch_prefect.flows.nightly import run_night


@task(task_run_name="into database: {parent}", retries=2, retry_delay_seconds=1)
def into_database(parent: WholeParent) -> Artifact:
    """One row a source. It may run again for the same source, so it replaces."""
    content = json.dumps(parent.value())
    with closing(sqlite3.connect(os.environ["COUNTS_DB"], timeout=60)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, words TEXT)")
        database.execute("REPLACE INTO counts VALUES (?, ?)", (parent.source.key, content))
    digest = sha256(content.encode()).hexdigest()
    return Artifact(key=parent.source.key, uri="counts", size=len(content), sha256=digest)


@flow
async def words_into_database(source: str, records: str) -> State[None]:
    """Count the words of each text under `source`; what was done is recorded under `records`."""
    state, _ = await run_night(word_count, source, records, upload_task=into_database)
    return state
