"""Where the key comes from, and what is refused before it is ever sent."""

from pathlib import Path

import pytest

from evalpipe.endpoint.keys import has_key, read_api_key
from evalpipe.errors import RunFatal

LOCAL = "http://localhost/v1"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("from-a-file\n")
    path.chmod(0o400)
    return path


def test_only_a_public_host_needs_a_key():
    """A local server gets the dummy key, a public one a line that names the variable (exit 77, before any request)."""
    assert read_api_key("K", base_url="http://localhost/v1", environ={}) == "none"
    assert read_api_key("K", base_url="https://example.com/v1", environ={"K": " k1\n"}) == "k1"
    with pytest.raises(RunFatal, match="set K") as caught:
        read_api_key("K", base_url="https://example.com/v1", environ={})

    assert caught.value.failure.kind == "auth"


def test_a_key_that_no_header_can_hold_is_refused_without_showing_it():
    """A key pasted with a typographic dash fails at once, not in every request."""
    with pytest.raises(RunFatal, match="characters") as caught:
        read_api_key("K", base_url="http://localhost/v1", environ={"K": "sk\u2013secret"})

    assert "secret" not in str(caught.value)


def test_a_file_wins_over_the_variable_and_is_read_anew(key_file: Path):
    """K_FILE names a file whose content is the key; each reading sees what it holds then."""
    environ = {"K": "from-the-variable", "K_FILE": str(key_file)}

    first = read_api_key("K", base_url=LOCAL, environ=environ)
    key_file.chmod(0o600)
    key_file.write_text("rotated")
    second = read_api_key("K", base_url=LOCAL, environ=environ)

    assert (first, second) == ("from-a-file", "rotated")


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o644])
def test_a_file_that_others_can_read_is_refused(key_file: Path, mode: int):
    """The message names the file, its mode and the command that mends it, and not what is in it."""
    key_file.chmod(mode)

    with pytest.raises(RunFatal, match=rf"mode {mode:04o}.*chmod 400") as caught:
        read_api_key("K", base_url=LOCAL, environ={"K_FILE": str(key_file)})

    assert caught.value.failure.kind == "auth"
    assert "from-a-file" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    """A mistyped path is no reason to go on without a key."""
    with pytest.raises(RunFatal, match=r"K_FILE names .*/nothing: No such file"):
        read_api_key("K", base_url=LOCAL, environ={"K_FILE": str(tmp_path / "nothing")})


def test_an_empty_file_is_no_key(key_file: Path):
    """Neither is the variable asked instead: the file was named on purpose."""
    key_file.chmod(0o600)
    key_file.write_text("\n")

    with pytest.raises(RunFatal, match="no API key"):
        read_api_key("K", base_url="https://example.com", environ={"K": "k", "K_FILE": str(key_file)})


def test_whether_there_is_a_key_is_known_without_reading_it():
    """The driver asks this to tell a worker that it ought to have one."""
    assert [has_key("K", environ) for environ in ({}, {"K": ""}, {"K": "x"}, {"K_FILE": "/y"})] == [
        False, False, True, True,
    ]  # fmt: skip
