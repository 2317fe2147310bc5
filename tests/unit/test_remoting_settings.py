"""Invalid settings of the front are refused with an error that names the setting and the reason."""

from pathlib import Path
from typing import Any

import pytest

from mqdb.errors import SettingInvalid
from mqdb.serving.front import front_of
from mqdb.settings import load_settings


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("remoting_certificate", {"remoting_certificate": "absent.pem"}, "No such file"),
        ("remoting_certificate", {"remoting_certificate": "nonsense.pem"}, "cannot be used"),
        ("remoting_tls_only", {"remoting_tls_only": True}, "no TLS without remoting_certificate"),
    ],
)
def test_files_of_tls_that_are_none_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: dict[str, Any], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nonsense.pem").write_text("nonsense")
    settings = load_settings(home=str(tmp_path), remoting="127.0.0.1:0", **wrong)

    with pytest.raises(SettingInvalid, match=reason) as refused, front_of(settings, "postgresql://127.0.0.1:1/absent"):
        pass

    assert refused.value.name == name
