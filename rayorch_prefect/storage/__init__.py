"""S3: listing, reading, key layout, publishing, ledger and manifest."""

from rayorch_prefect.storage.access import Access, ClientSettings
from rayorch_prefect.storage.encoding import encode
from rayorch_prefect.storage.keys import output_key
from rayorch_prefect.storage.lease import Fence
from rayorch_prefect.storage.ledger import Ledger, LedgerEntry, Subtraction, standing, subtract
from rayorch_prefect.storage.listing import list_sources, refuse_empty
from rayorch_prefect.storage.locations import S3Location, refuse_nested
from rayorch_prefect.storage.manifest import (
    ManifestRow,
    empty_other_parts,
    manifest_location,
    read_manifest,
    write_part,
)
from rayorch_prefect.storage.nights import NightFiles, night_files
from rayorch_prefect.storage.objects import Artifact
from rayorch_prefect.storage.open_uploads import sweep_uploads
from rayorch_prefect.storage.probing import StoreFeatures, probe
from rayorch_prefect.storage.publishing import Published, publish
from rayorch_prefect.storage.reports import report_uri, write_report
from rayorch_prefect.storage.row_outcomes import RowOutcome
from rayorch_prefect.storage.source import Source
from rayorch_prefect.storage.stamps import find_published
from rayorch_prefect.storage.state_folder import state_location
from rayorch_prefect.storage.terms import PLAIN, Terms

__all__ = [
    "PLAIN",
    "Access",
    "Artifact",
    "ClientSettings",
    "Fence",
    "Ledger",
    "LedgerEntry",
    "ManifestRow",
    "NightFiles",
    "Published",
    "RowOutcome",
    "S3Location",
    "Source",
    "StoreFeatures",
    "Subtraction",
    "Terms",
    "empty_other_parts",
    "encode",
    "find_published",
    "list_sources",
    "manifest_location",
    "night_files",
    "output_key",
    "probe",
    "publish",
    "read_manifest",
    "refuse_empty",
    "refuse_nested",
    "report_uri",
    "standing",
    "state_location",
    "subtract",
    "sweep_uploads",
    "write_part",
    "write_report",
]
