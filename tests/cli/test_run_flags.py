"""Flags of `evalpipe run` that stand for settings: a wrong value is refused by the setting's name, before any work."""

from __future__ import annotations

import pytest

from evalpipe.cli.main import main


@pytest.mark.parametrize(("flag", "setting"), [("--rpm", "quota.rpm"), ("--tpm", "quota.tpm")])
def test_a_quota_flag_is_the_setting_of_its_name(flag: str, setting: str, capsys: pytest.CaptureFixture[str]):
    """Nothing at all a minute cannot be meant: exit 2, one line that names the setting and what was given."""
    with pytest.raises(SystemExit) as left:
        main(["run", flag, "0"])

    assert left.value.code == 2
    assert f"{setting}: " in capsys.readouterr().err
