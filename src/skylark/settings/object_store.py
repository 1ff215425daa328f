"""Addresses of tables in object stores and HDFS, and what their clients need beside the environment.

Every process, driver or worker, finds credentials in its own environment, so none is in a plan, a checkpoint
or an event log. The variables are those of the stores' own tools; profiles of AWS are read here, as the
libraries do not read them.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from skylark.errors import SettingsError

HDFS = "hdfs"
SCHEMES = ("s3", "gs", "abfss", HDFS)
_PROFILE_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_REGION = "us-east-1"
"""Servers other than AWS accept any region."""


def is_uri(where: str) -> bool:
    """Return whether a table is in an object store or HDFS; otherwise it is in a local directory."""
    return "://" in where


def check_uri(name: str, uri: str) -> str:
    """Return the address without a slash at its end. Raises SettingsError, which never repeats a password."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise SettingsError(name, f"unknown store {parts.scheme}://; use a directory, or {known}")
    has_user = "@" in parts.netloc and parts.scheme != "abfss"  # container@account is Azure's notation
    has_port = ":" in parts.netloc and parts.scheme != HDFS
    if has_user or has_port or parts.query or parts.fragment:
        raise SettingsError(
            name,
            f"the address {parts.scheme}://… holds more than a bucket and a path; give credentials by the "
            "environment or a profile",
        )
    if not parts.netloc or not parts.path.strip("/"):
        place = "NAMENODE:PORT" if parts.scheme == HDFS else "BUCKET"
        raise SettingsError(name, f"invalid address {uri!r}; use {parts.scheme}://{place}/PATH")
    return uri.rstrip("/")


def client_settings(uri: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings of a store's client that the environment does not give it. Raises SettingsError."""
    if urlsplit(uri).scheme != "s3":
        return {}
    variables = os.environ if environment is None else environment
    profile = _profile(variables)
    endpoint = next(
        (
            found
            for found in (
                variables.get("AWS_ENDPOINT_URL_S3"),
                variables.get("AWS_ENDPOINT_URL"),
                profile.get("endpoint_url"),
            )
            if found
        ),
        None,
    )
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or profile.get("region")
    settings = {"aws_region": region or _REGION, "aws_conditional_put": "etag"}
    settings |= {key: profile[key] for key in _PROFILE_KEYS if key in profile}
    if endpoint is not None:
        settings["aws_endpoint"] = endpoint
        if endpoint.startswith("http://"):
            settings["allow_http"] = "true"
    return settings


def _profile(variables: Mapping[str, str]) -> dict[str, str]:
    """The profile of AWS in use. Its keys count only if the environment has none."""
    chosen = variables.get("AWS_PROFILE")
    home = Path(variables.get("HOME") or Path.home())
    keys = _section(variables.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials", chosen, "")
    rest = _section(variables.get("AWS_CONFIG_FILE") or home / ".aws/config", chosen, "profile ")
    found = {**rest, **keys}
    if variables.get("AWS_ACCESS_KEY_ID"):
        return {key: value for key, value in found.items() if key not in _PROFILE_KEYS}
    if chosen and not all(found.get(key) for key in _PROFILE_KEYS[:2]):
        raise SettingsError(
            "AWS_PROFILE",
            f"profile {chosen!r} has no aws_access_key_id and aws_secret_access_key; set the variables with "
            f'eval "$(aws configure export-credentials --profile {chosen} --format env)"',
        )
    return found


def _section(path: Path | str, profile: str | None, prefix: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(Path(path).read_text())
    except OSError:
        return {}
    except configparser.Error:
        raise SettingsError("AWS_PROFILE", f"cannot read {path}: it is not a file of profiles") from None
    name = profile or "default"
    for section in (f"{prefix}{name}", name):
        if parser.has_section(section):
            return dict(parser.items(section))
    return {}
