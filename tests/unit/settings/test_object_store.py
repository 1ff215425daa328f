"""Addresses of tables in object stores, and credentials from profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.errors import SettingsError
from skylark.settings.object_store import check_uri, client_settings

URI = "s3://lake/raw"
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    "uri",
    [
        "s3://lake/raw",
        "gs://lake/raw/orders",
        "abfss://lake@account.dfs.core.windows.net/raw",
        "hdfs://name:8020/raw",
        "hdfs://nameservice1/raw",
    ],
)
def test_addresses_lose_only_the_slash_at_their_end(uri: str) -> None:
    assert check_uri("to", f"{uri}/") == uri


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("ftp://lake/raw", r"unknown store ftp://; use a directory, or s3://"),
        ("hdfs:///raw", r"use hdfs://NAMENODE:PORT/PATH"),
        ("hdfs://me:hidden@name:8020/raw", r"give credentials by the environment or a profile"),
        ("s3://lake", r"invalid address 's3://lake'; use s3://BUCKET/PATH"),
        ("s3:///raw", r"use s3://BUCKET/PATH"),
        ("s3://key:hidden@lake/raw", r"give credentials by the environment or a profile"),
        ("s3://lake/raw?secret=hidden", r"give credentials by the environment or a profile"),
    ],
)
def test_an_address_that_is_refused_is_told_why_without_its_secrets(uri: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as refused:
        check_uri("to", uri)
    assert "hidden" not in str(refused.value)


def home(folder: Path, credentials: str = "", config: str = "") -> dict[str, str]:
    (folder / ".aws").mkdir()
    (folder / ".aws/credentials").write_text(credentials)
    (folder / ".aws/config").write_text(config)
    return {"HOME": str(folder)}


def test_keys_of_the_environment_are_left_to_the_client(tmp_path: Path) -> None:
    variables = home(tmp_path, "[default]\naws_access_key_id = other\naws_secret_access_key = other\n")
    found = client_settings(URI, variables | KEYS)
    assert found == {"aws_region": "us-east-1", "aws_conditional_put": "etag"}


def test_a_profile_gives_keys_region_and_endpoint(tmp_path: Path) -> None:
    variables = home(
        tmp_path,
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"
        "[work]\naws_access_key_id = id\naws_secret_access_key = 100%secret\naws_session_token = token\n",
        "[profile work]\nregion = eu-central-1\nendpoint_url = http://localhost:7070\n",
    )
    assert client_settings(URI, {**variables, "AWS_PROFILE": "work"}) == {
        "aws_region": "eu-central-1",
        "aws_conditional_put": "etag",
        "aws_access_key_id": "id",
        "aws_secret_access_key": "100%secret",
        "aws_session_token": "token",
        "aws_endpoint": "http://localhost:7070",
        "allow_http": "true",
    }
    assert client_settings(URI, variables)["aws_access_key_id"] == "a"


def test_a_profile_without_keys_is_refused_with_what_to_do(tmp_path: Path) -> None:
    variables = home(tmp_path, config="[profile work]\nsso_session = company\n")
    with pytest.raises(SettingsError, match=r"'work' has no aws_access_key_id .* export-credentials"):
        client_settings(URI, {**variables, "AWS_PROFILE": "work"})


def test_without_keys_the_client_asks_the_machine(tmp_path: Path) -> None:
    assert "aws_access_key_id" not in client_settings(URI, {"HOME": str(tmp_path)})


def test_other_stores_need_nothing_beside_their_environment(tmp_path: Path) -> None:
    assert client_settings("gs://lake/raw", {"HOME": str(tmp_path)}) == {}
