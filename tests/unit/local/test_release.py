"""`make release` in a small repository: refusals and results."""

import json
import re
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest
from local.packages import (
    CONTAINED_LICENCES,
    LICENCES,
    PINNED,
    PROJECT,
    Component,
    ReleaseFailed,
    bill_of_materials,
    check_ready,
    layer_components,
    release,
    version_of,
    wheel_components,
)
from samtranslator.yaml_helper import yaml_parse

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "small"
version = "1.2.3"
description = "A package of one module."
requires-python = ">=3.11"
readme = "README.md"
license = "MIT"
"""


def git(project: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.com")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, "utf-8")
    (tmp_path / "README.md").write_text("# small\n", "utf-8")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3]\n", "utf-8")
    (tmp_path / ".gitignore").write_text("build/\n", "utf-8")
    (tmp_path / "small.py").write_text("", "utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "small")
    return tmp_path


def test_a_release_builds_both_files_and_tags_the_version(project: Path) -> None:
    out = project / "build" / "dist"
    assert release(project, out) == "v1.2.3"
    assert [file.name for file in sorted(out.iterdir())] == [
        "small-1.2.3-py3-none-any.whl",
        "small-1.2.3.tar.gz",
        "wheel.cdx.json",
    ]
    assert git(project, "tag", "--list") == "v1.2.3"
    assert git(project, "status", "--porcelain") == ""
    assert re.search(
        r"^## \[1\.2\.3\] - \d{4}-\d\d-\d\d$", git(project, "show", "v1.2.3:CHANGELOG.md"), re.MULTILINE
    )
    with pytest.raises(ReleaseFailed, match=r"tag v1\.2\.3 exists"):
        release(project, out)


def test_a_date_in_the_changelog_stays(project: Path) -> None:
    (project / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2020-02-02\n", "utf-8")
    git(project, "commit", "--quiet", "--all", "--message", "date")
    head = git(project, "rev-parse", "HEAD")
    assert release(project, project / "build" / "dist") == "v1.2.3"
    assert git(project, "rev-parse", "v1.2.3^{commit}") == head


def test_a_build_that_fails_leaves_no_commit_tag_or_date(project: Path) -> None:
    (project / "small.py").unlink()
    (project / "other.py").write_text("", "utf-8")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "rename the module")
    head = git(project, "rev-parse", "HEAD")
    with pytest.raises(ReleaseFailed, match="build"):
        release(project, project / "build" / "dist")
    assert git(project, "rev-parse", "HEAD") == head
    assert git(project, "tag", "--list") == ""
    assert git(project, "status", "--porcelain") == ""


def test_a_dirty_tree_is_refused(project: Path) -> None:
    (project / "small.py").write_text("x = 1\n", "utf-8")
    with pytest.raises(ReleaseFailed, match=r"uncommitted changes.*\n.*small\.py"):
        release(project, project / "build")
    assert git(project, "tag", "--list") == ""


def test_a_version_without_a_changelog_section_is_refused(project: Path) -> None:
    with pytest.raises(ReleaseFailed, match=r"no section '## \[2\.0\.0\]'"):
        check_ready(project, "2.0.0")


def test_a_version_that_is_no_release_is_refused(project: Path) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT.replace("1.2.3", "1.2.3.dev1"), "utf-8")
    with pytest.raises(ReleaseFailed, match=r"must be X\.Y\.Z, got '1\.2\.3\.dev1'"):
        version_of(project)


def test_the_bill_of_the_layer_lists_all_that_is_locked_with_licences_that_may_be_contained() -> None:
    components = layer_components(PROJECT)
    locked = PINNED.findall((PROJECT / "layers" / "freshq" / "requirements.txt").read_text("utf-8"))
    assert [each.name for each in components] == sorted(locked)
    bill = json.loads(bill_of_materials("layer", "1.2.3", components, CONTAINED_LICENCES))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    (pydantic,) = [each for each in bill["components"] if each["name"] == "pydantic"]
    assert pydantic["purl"] == f"pkg:pypi/pydantic@{distribution('pydantic').version}"
    assert pydantic["licenses"] == [{"license": {"name": "MIT"}}]


def test_the_bill_of_the_wheel_has_what_its_extras_need() -> None:
    components = wheel_components(PROJECT)
    names = {each.name for each in components}
    assert {"pydantic", "pydantic-core", "botocore", "psycopg", "pyspark", "starlette"} <= names
    assert names.isdisjoint({"freshq", "pytest", "moto"})
    again = bill_of_materials("wheel", "1.2.3", wheel_components(PROJECT), LICENCES)
    assert bill_of_materials("wheel", "1.2.3", components, LICENCES) == again


def test_a_licence_that_nobody_checked_stops_a_release() -> None:
    with pytest.raises(ReleaseFailed, match=r"copyleft \(GPL-3\.0-only\)"):
        bill_of_materials("wheel", "1.2.3", [Component("copyleft", "1", "GPL-3.0-only")], LICENCES)
    with pytest.raises(ReleaseFailed, match="psycopg"):
        bill_of_materials("layer", "1", [Component("psycopg", "3", "LGPL-3.0-only")], CONTAINED_LICENCES)


def test_actions_of_workflows_are_named_by_their_commits() -> None:
    workflows = "".join(path.read_text("utf-8") for path in (PROJECT / ".github").rglob("*.yml"))
    used = re.findall(r"uses: (\S+)", workflows)
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


def test_images_of_workflows_are_named_by_their_digests() -> None:
    (workflow,) = (PROJECT / ".github" / "workflows").glob("*.yml")
    jobs = yaml_parse(workflow.read_text("utf-8"))["jobs"]
    images = [job["container"] for job in jobs.values()]
    matrix = jobs["runtimes"]["strategy"]["matrix"]
    assert {each["python"] for each in matrix["include"]} == set(matrix["python"])
    images += [f"image@{each['digest']}" for each in matrix["include"]]
    for image in images:
        assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image) or image.endswith("@${{ matrix.digest }}"), (
            image
        )
