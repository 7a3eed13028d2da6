"""The runtime environment that workers get from Ray: a user's own modules, variables, packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rayorch_prefect.errors import UsageError

_LOCAL = ("working_dir", "py_modules")


def environment(
    working_dir: str | None = None, runtime_env: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Ray's runtime_env with this folder as its working_dir.

    Raises UsageError: the folder is not there, or both name one.
    """
    asked: dict[str, Any] = dict(runtime_env or {})
    if working_dir is None:
        return asked
    if "working_dir" in asked:
        raise UsageError(
            f"working_dir is given twice: {working_dir!r}, and in runtime_env "
            f"{asked['working_dir']!r}; leave one out"
        )
    if "://" not in working_dir:
        working_dir = os.path.abspath(working_dir)
        if not os.path.isdir(working_dir):
            raise UsageError(
                f"working_dir {working_dir!r} is not a folder; expected the one that holds the "
                "program's modules"
            )
    return {**asked, "working_dir": working_dir}


def checked(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as Ray will take it. Raises UsageError for a field or value it does not."""
    from ray.runtime_env import RuntimeEnv

    try:
        RuntimeEnv(**runtime_env)
    except (TypeError, ValueError, OSError) as error:
        raise UsageError(f"runtime_env is not one that Ray takes: {error}") from error
    return dict(runtime_env)


def refuse_local_folders(runtime_env: Mapping[str, Any]) -> None:
    """Raise UsageError for folders of this machine: Ray takes them in only as it connects."""
    for name in _LOCAL:
        given = runtime_env.get(name) or ()
        for one in [given] if isinstance(given, str) else given:
            if "://" not in str(one):
                raise UsageError(
                    f"runtime_env has a local {name} ({one}), and Ray takes one in only when it "
                    "is initialised, which this process has done before: give it to that "
                    f"ray.init(runtime_env={{{name!r}: ...}})"
                )


def merged(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """`inner` over `outer`, as Ray lays a stage's over the job's: variables are united."""
    both = {**outer, **inner}
    if "env_vars" in outer and "env_vars" in inner:
        both["env_vars"] = {**outer["env_vars"], **inner["env_vars"]}
    return both
