"""The built site: pages that a search finds, and the order of verbs in the reference."""

import re
from pathlib import Path

from samtranslator.yaml_helper import yaml_parse

from freshq import Queue

ROOT = Path(__file__).parents[2]


def test_the_reference_of_a_queue_has_every_name_and_starts_with_put_claim_and_complete() -> None:
    page = (ROOT / "docs/reference/queue.md").read_text()
    options = re.search(r"^::: freshq\.Queue\n((?: {4}.*\n)+)", page, re.MULTILINE)
    assert options is not None
    members = yaml_parse(options[1])["options"]["members"]
    assert members[:3] == ["put", "claim", "complete"]
    assert sorted(members) == sorted(name for name in dir(Queue) if not name.startswith("_"))


def test_decisions_are_not_searched() -> None:
    plugins = re.search(r"^plugins:\n((?: .*\n)+)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert plugins is not None
    assert "meta" in yaml_parse(plugins[1])
    settings = yaml_parse((ROOT / "docs/decisions/.meta.yml").read_text())
    assert settings["search"]["exclude"] is True
