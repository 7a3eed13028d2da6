"""Prefect blocks: a place in S3 and a Ray cluster, saved once and named wherever one is asked for.

Every Prefect server that has the package installed loads this module: boto3 and Ray come in only
when a block's methods are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from rayorch_prefect.storage.access import ClientSettings

__all__ = ["RayCluster", "S3Location"]

# Of blocks in general, as there is no site of this project.
_PAGE = "https://docs.prefect.io/v3/concepts/blocks"
_LOGOS = "https://raw.githubusercontent.com/PrefectHQ/prefect/420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos"


class S3Location(Block):
    """A bucket and prefix, and how its store is reached; what is left out is boto3's own chain.

    Example:
        Use a stored place as the source of a night:
        ```python
        from rayorch_prefect.blocks import S3Location

        source = S3Location.load("BLOCK_NAME")
        state, numbers = await run_night(program, source, "s3://bucket/out/")
        ```
        In a deployment's parameters and on the command line: `s3-location/BLOCK_NAME`.
    """

    # An error of pydantic would show the values, secrets among them.
    model_config = ConfigDict(hide_input_in_errors=True)

    _block_type_name = "S3 Location"
    _block_type_slug = "s3-location"
    _description = (
        "A bucket and prefix that sources are read from or documents are published to, with the "
        "endpoint and credentials of its store."
    )
    _logo_url = f"{_LOGOS}/aws.png"  # type: ignore[assignment]
    _documentation_url = _PAGE  # type: ignore[assignment]

    url: str = Field(description="The place, such as s3://bucket/prefix/.", title="URL")
    endpoint_url: str | None = Field(
        default=None,
        description="The address of the S3 server; AWS_ENDPOINT_URL or AWS itself if left out.",
        title="Endpoint URL",
    )
    region_name: str | None = Field(
        default=None, description="The region of the bucket; boto3's own chain if left out."
    )
    access_key_id: str | None = Field(
        default=None, description="The access key's id; boto3's own chain if left out."
    )
    secret_access_key: SecretStr | None = Field(
        default=None, description="The secret of the access key."
    )
    session_token: SecretStr | None = Field(
        default=None,
        description="The token of temporary credentials, which have to last for the whole night.",
    )

    @field_validator("url")
    @classmethod
    def _of_s3(cls, url: str) -> str:
        from rayorch_prefect.errors import UsageError
        from rayorch_prefect.storage.locations import S3Location as Location

        try:
            return str(Location.parse(url))
        except UsageError as error:
            raise ValueError(str(error)) from None

    @field_validator("endpoint_url")
    @classmethod
    def _without_credentials(cls, url: str | None) -> str | None:
        found = urlsplit(url or "http://none")
        if found.scheme not in ("http", "https") or not found.hostname or "@" in found.netloc:
            raise ValueError(
                "expected an address like http://host:port, without user and password: those go "
                "into access_key_id and secret_access_key"
            )
        return url or None

    @model_validator(mode="after")
    def _whole_keys(self) -> S3Location:
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ValueError("access_key_id and secret_access_key go together")
        if self.session_token and not self.access_key_id:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        return self

    def get_url(self) -> str:
        """`s3://bucket/prefix/`."""
        return self.url

    def get_client_settings(self) -> ClientSettings:
        """What a client of this store is made with, secrets included; its repr has none."""
        from rayorch_prefect.storage.access import ClientSettings

        secret, token = self.secret_access_key, self.session_token
        return ClientSettings(
            endpoint_url=self.endpoint_url,
            region_name=self.region_name or None,
            access_key_id=self.access_key_id or None,
            secret_access_key=secret.get_secret_value() if secret else None,
            session_token=token.get_secret_value() if token else None,
        )

    def get_client(self) -> S3Client:
        """A boto3 client of this store. Raises UsageError for settings that make none."""
        from rayorch_prefect.storage.client import CONNECT_TIMEOUT, READ_TIMEOUT, client_of

        return client_of(self.get_client_settings(), CONNECT_TIMEOUT, READ_TIMEOUT)


class RayCluster(Block):
    """A Ray cluster that nights run on, and what it gives their workers.

    Example:
        Run a night on a stored cluster:
        ```python
        from rayorch_prefect.blocks import RayCluster

        cluster = RayCluster.load("BLOCK_NAME")
        state, numbers = await run_night(program, source, destination, ray_address=cluster)
        ```
        In a deployment's parameters and on the command line: `ray-cluster/BLOCK_NAME`.
    """

    _block_type_name = "Ray Cluster"
    _block_type_slug = "ray-cluster"
    _description = "A Ray cluster that nights run on: its address and its workers' environment."
    _logo_url = "https://avatars.githubusercontent.com/u/22125274?s=200&v=4"  # type: ignore[assignment]
    _documentation_url = _PAGE  # type: ignore[assignment]

    address: str = Field(
        description="The cluster's GCS, such as head:6379; auto for the Ray of the flow's machine, "
        "local for one of the night's own."
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray's runtime_env of the workers; Ray shows it, so no secrets belong there.",
        title="Runtime environment",
    )

    @field_validator("address")
    @classmethod
    def _of_a_driver(cls, address: str) -> str:
        if not address.strip() or "://" in address:
            raise ValueError(
                "expected the address of the cluster's GCS (host:6379), auto or local; the night "
                "runs on the cluster, so a Ray client's address will not do"
            )
        return address.strip()

    def get_address(self) -> str:
        """What `ray.init` is given as its address."""
        return self.address

    def get_runtime_env(self) -> dict[str, Any]:
        """What Ray gives the workers."""
        return dict(self.runtime_env)
