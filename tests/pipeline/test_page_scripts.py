"""The scripts of the report are bundled once on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vl_convert

from freshq_pipeline.report import page

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_scripts_are_bundled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = list[dict[str, Any]]()

    def bundle(**options: Any) -> str:
        bundled.append(options)
        return "vegaEmbed"

    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert [page._scripts(), page._scripts()] == ["vegaEmbed"] * 2
    assert len(bundled) == 2
    (tmp_path / "cache").unlink()
    assert [page._scripts(), page._scripts()] == ["vegaEmbed"] * 2
    assert len(bundled) == 3
