from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.spark import dashboard_option
from millstream.spark.dashboard_option import LOOPBACK, address_of, check_dashboard


def test_without_an_address_the_dashboard_is_on_loopback() -> None:
    assert address_of(None) == address_of(True) == LOOPBACK == ("127.0.0.1", 0)
    assert address_of(False) is None
    assert address_of("127.0.0.1:8080") == ("127.0.0.1", 8080)
    assert address_of("[::1]:0") == ("::1", 0)


@pytest.mark.parametrize("option", ["", "8080", "host:", ":1", "h:65536", "h:-1", 8080, 1.5])
def test_what_is_no_address_is_refused(option: object) -> None:
    with pytest.raises(ConfigError, match=r"dashboard must be True, False, or an address"):
        check_dashboard(option)


def test_without_its_packages_there_is_none_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dashboard_option, "is_installed", lambda: False)

    assert address_of(None) is None
    check_dashboard(None)
    check_dashboard(False)
    with pytest.raises(ConfigError, match="pip install"):
        check_dashboard(True)
