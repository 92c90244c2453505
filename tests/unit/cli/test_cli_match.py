"""`freshq match` on DynamoDB Local: its output and exit status."""

import json
import os
import re
import shlex
import uuid
from pathlib import Path
from typing import Any

import pytest
from local.faults import client_at
from typer.testing import CliRunner, Result
from types_boto3_dynamodb import DynamoDBClient

from freshq import MatchQueue
from freshq.cli.main import app
from freshq.matching import ResourceStatus
from freshq.matching.stores import dynamodb as match_store
from tests.support.matching import ARTICLE, join

DOCS = Path(__file__).parents[3] / "docs" / "matching.md"
TOKEN = re.compile(r"[0-9a-f]{32}")
DURATION = re.compile(r"(?: [0-9.]+ (?:s|min|h)\b)+")


@pytest.fixture
def client(dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> DynamoDBClient:
    monkeypatch.setattr(match_store, "default_client", lambda: dynamodb_local)
    return dynamodb_local


@pytest.fixture
def queue(client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> MatchQueue:
    """Return a queue on an empty table that the commands also use."""
    table = f"agents-{uuid.uuid4().hex}"
    monkeypatch.setenv("FRESHQ_MATCH_QUEUE", f"dynamodb://{table}")
    queue = MatchQueue.dynamodb(table, client)
    queue.create_table()
    return queue


def freshq(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["match", *arguments], env={"COLUMNS": "100"})


def answer(*arguments: str) -> Any:
    """Return the JSON that a command prints."""
    done = freshq(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def fails(status: int, said: str, *arguments: str) -> None:
    """Check the exit status and the one-line error of a command."""
    done = freshq(*arguments)
    assert done.exit_code == status, done.output
    assert re.search(said, done.stderr), done.stderr
    assert done.stderr.startswith("freshq: ")
    assert done.stderr.count("\n") == 1


def staff(queue: MatchQueue) -> None:
    for name, attributes in ARTICLE.items():
        join(queue, name, attributes)


def session_of_the_docs() -> list[tuple[str, str]]:
    """Return each command of the session in the docs with what it prints."""
    text = (
        DOCS.read_text(encoding="utf-8").partition("## A call center at the shell")[2].partition("\n## ")[0]
    )
    (shown,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line.rstrip() for line in shown.splitlines()]
    session: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("$ "):
            session.append((line[2:], ""))
        else:
            command, printed = session.pop()
            session.append((command, f"{printed}{line}\n"))
    return session


def comparable(text: str) -> list[list[str]]:
    """Return the words of each line, without what differs from run to run."""
    text = DURATION.sub(" N s", TOKEN.sub("TOKEN", text)).replace("─", "")
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.mark.usefixtures("client")
def test_the_session_of_the_docs_typed_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of_the_docs()
    assert len(session) > 10
    token = ""
    for command, printed in session:
        words = shlex.split(command.replace("$TOKEN", token))
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
            continue
        assert words[:2] == ["freshq", "match"]
        done = freshq(*words[2:])
        assert comparable(done.output) == comparable(printed), command
        assert done.exit_code == (1 if "freshq: " in printed else 0), command
        token = found[0] if (found := TOKEN.findall(done.output)) else token
    fails(3, "not exist|no such table", "list")


def test_a_resource_through_all_its_states(queue: MatchQueue) -> None:
    registered = answer("register", "Ellen", "language=English,Spanish", "gender=F")
    assert registered == {
        "resource_id": "Ellen",
        "attributes": {"gender": ["F"], "language": ["English", "Spanish"]},
        "status": "AVAILABLE",
        "since": None,
        "lease_until": None,
        "caller_id": None,
        "data": None,
    }
    assert answer("offer", "Ellen")["status"] == "QUEUED"
    fails(1, "'Ellen': cannot offer while it is QUEUED", "offer", "Ellen")
    depths = {"gender=F&language=English": 1, "gender=F&language=Spanish": 1}
    assert answer("depths") == {"depths": depths, "at_most": 1000}
    assert "1 or more" in freshq("depths", "--limit", "1").output
    assert answer("withdraw", "Ellen")["status"] == "AVAILABLE"
    assert answer("offer", "--all") == {"enqueued": 1}
    (match,) = answer("match", "language=German,Spanish/English", "gender=*")
    assert (match["resource_id"], match["rank"]) == ("Ellen", 1)
    fails(1, "no resource that fits is waiting", "match", "language=Spanish")
    assert answer("extend", "Ellen", "--token", match["token"], "--lease-seconds", "600")
    assert answer("recover") == {"recovered": 0}
    fails(1, "matched to another caller", "complete", "Ellen", "--token", "old")
    assert answer("complete", "Ellen", "--token", match["token"])["status"] == "AVAILABLE"
    fails(1, "it is AVAILABLE now", "complete", "Ellen", "--token", match["token"])
    assert answer("unregister", "Ellen") == {"unregistered": "Ellen"}
    assert queue.get("Ellen") is None
    fails(1, "'Ellen': not registered", "complete", "Ellen", "--token", "x")


def test_data_and_a_match_without_a_lease(queue: MatchQueue) -> None:
    staff(queue)
    registered = answer("register", "Zoe", "language=Greek", "--data", '{"AgentID": 7}')
    assert registered["data"] == {"AgentID": 7}
    answer("offer", "Zoe")
    fails(2, "lease_seconds: must be a number or none, got 'long'", "match", "--lease", "long")
    (match,) = answer("match", "language=Greek", "--lease", "none")
    assert (match["data"], match["lease_until"]) == ({"AgentID": 7}, None)
    shown = freshq("extend", "Zoe", "--token", match["token"], "--lease-seconds", "5").output
    assert re.search(r'held for +until it is completed or released *\n.*\ndata +{"AgentID": 7}', shown)
    listed = answer("list", "--status", "MATCHED")["resources"]
    assert [(each["resource_id"], each["data"]) for each in listed] == [("Zoe", {"AgentID": 7})]
    fails(2, "data: must be JSON", "register", "Max", "--data", "{")


def test_criteria_as_json(queue: MatchQueue) -> None:
    staff(queue)
    wish = '[{"language": "German"}, {"language": [["French", "Spanish"], null], "gender": "F"}]'
    (match,) = answer("match", "--criteria", wish)
    assert (match["resource_id"], match["rank"]) == ("Christine", 1)
    answer("register", "odd", "--attributes", '{"skill": ["a,b", "c/d"]}')
    answer("offer", "odd")
    assert answer("match", "--criteria", '{"skill": "a,b"}')[0]["resource_id"] == "odd"


def test_a_listing_has_a_limit_and_a_state(queue: MatchQueue) -> None:
    staff(queue)
    queue.withdraw("Remy")
    assert [found["resource_id"] for found in answer("list", "--status", "AVAILABLE")["resources"]] == [
        "Remy"
    ]
    some = answer("list", "--limit", "2")
    assert (len(some["resources"]), some["more"]) == (2, True)
    assert answer("list", "--limit", "5")["more"] is False
    shown = freshq("list").output
    assert re.search(r"Billy +QUEUED +\d\S* s +gender=M language=English,French,Spanish", shown)
    fails(2, "status: must be one of AVAILABLE, QUEUED, MATCHED, got 'BUSY'", "list", "--status", "BUSY")


def test_complete_all_asks_first(queue: MatchQueue) -> None:
    staff(queue)
    assert len(queue.match({}, limit=2)) == 2
    fails(2, "pass --yes to confirm", "complete", "--all")
    assert answer("complete", "--all", "--yes") == {"released": 2}
    assert len(list(queue.resources(ResourceStatus.AVAILABLE))) == 2


def test_generated_agents_are_the_same_for_a_seed(queue: MatchQueue) -> None:
    made = answer("generate", "--agents", "7", "--seed", "3")["agents"]
    assert len(made) == 7
    assert answer("generate", "--agents", "7", "--seed", "3")["agents"] == made
    assert {resource.resource_id for resource in queue.resources()} == set(made)
    assert answer("generate")["agents"] != made[:5]
    answer("offer", "--all")
    people = answer("generate", "--agents", "0", "--callers", "20", "--seed", "4")["callers"]
    assert set(people.values()) > {None}  # some have an agent, some wait
    waiting = [caller["caller_id"] for caller in answer("callers")["callers"]]
    assert waiting == [name for name, agent in people.items() if agent is None]
    assert re.search(r"caller \S+: waits, asked", freshq("generate", "--callers", "1", "--seed", "9").output)


def test_a_caller_waits_in_line_and_asks_again(queue: MatchQueue) -> None:
    fails(
        1,
        "caller 'ann': waits in line; repeat the command to ask again",
        "request",
        "ann",
        "language=Spanish",
    )
    fails(1, "'bob': waits", "request", "bob", "--criteria", '{"language": ["Spanish", null]}')
    listed = answer("callers", "--limit", "1")
    assert [caller["caller_id"] for caller in listed["callers"]] == ["ann"]
    assert listed["callers"][0]["asks"] == [[{"language": "Spanish"}]]
    assert listed["more"] is True
    assert re.search(r"bob +\d\S* s +", freshq("callers").output)
    assert answer("abandon", "bob") == {"abandoned": "bob"}
    fails(1, "'bob': does not wait", "abandon", "bob")
    queue.register("Ellen", attributes=ARTICLE["Ellen"])
    assert "resource Ellen: MATCHED to caller ann" in freshq("offer", "Ellen").output
    (match,) = answer("request", "ann", "language=Spanish")
    assert (match["resource_id"], match["caller_id"]) == ("Ellen", "ann")
    assert answer("complete", "Ellen", "--token", match["token"])["caller_id"] is None
    assert "no caller waits" in freshq("callers").output


def test_only_a_table_of_resources_is_deleted(
    queue: MatchQueue, client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(2, "pass --yes to confirm", "delete")
    staff(queue)
    assert answer("delete", "--yes") == {"deleted": True}
    assert answer("delete", "--yes") == {"deleted": True}  # no error
    fails(3, "agents-", "depths")
    queue.create_table()
    table = queue._store._table  # type: ignore[attr-defined]
    client.put_item(TableName=table, Item={"pk": {"S": "order"}, "sk": {"S": "1"}})
    fails(3, "other items than resources; nothing was deleted", "delete", "--yes")
    monkeypatch.setenv("FRESHQ_MATCH_QUEUE", f"dynamodb://{table}?order=lifo&lease_seconds=none")
    assert answer("generate", "--agents", "0") == {"agents": [], "callers": {}}


def test_in_a_file_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"sqlite:///{tmp_path / 'agents.db'}?lease_seconds=600&timeout=3#agents"
    monkeypatch.setenv("FRESHQ_MATCH_QUEUE", address)
    fails(3, "there is no file .*freshq match create", "list")
    assert answer("create") == {"created": True}
    assert answer("generate", "--agents", "3")["agents"]
    assert answer("offer", "--all") == {"enqueued": 3}
    (match,) = answer("match")
    assert match["lease_until"] - match["since"] > 590
    assert sum(answer("depths", "--limit", "9")["depths"].values()) >= 2
    assert answer("complete", "--all", "--yes") == {"released": 1}
    assert answer("delete", "--yes") == {"deleted": True}
    fails(3, "does not exist; run .*freshq match create", "callers")
    monkeypatch.setenv("FRESHQ_MATCH_QUEUE", "sqlite:///:memory:")
    fails(2, "names no file", "list")


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("queue: missing; .*FRESHQ_MATCH_QUEUE", ["list", "--queue", ""]),
        ("queue: memory:// would forget", ["list", "--queue", "memory://"]),
        ("unknown option 'shards' in the address; use order", ["list", "--queue", "dynamodb://A?shards=2"]),
        ("lease_seconds: must be a number", ["list", "--queue", "dynamodb://A?lease_seconds=x"]),
        ("order: must be fifo or lifo", ["list", "--queue", "dynamodb://Agents?order=adaptive"]),
        ("attributes: must look like NAME=VALUE,VALUE, got 'English'", ["register", "a", "English"]),
        ("attributes: 'a' at most once", ["register", "a", "a=b", "a=c"]),
        ("attributes: must be a JSON object", ["register", "a", "--attributes", "[]"]),
        ("attributes: must be JSON", ["register", "a", "--attributes", "{"]),
        ("attributes.language: a value", ["register", "a", "language=English,"]),
        ("criteria: must look like", ["match", "language="]),
        ("criteria: give either NAME=VALUE or --criteria", ["match", "a=b", "--criteria", "{}"]),
        ("criteria: must be a mapping", ["match", "--criteria", "3"]),
        ("limit: ", ["match", "--limit", "0"]),
        ("--limit", ["depths", "--limit", "0"]),
        ("id: missing; give either resources or --all", ["offer"]),
        ("id: missing; give either resources or --all", ["offer", "a", "--all"]),
        ("token: missing", ["complete", "a"]),
        ("id: give either a resource with --token, or --all", ["complete", "a", "--all"]),
    ],
)
@pytest.mark.usefixtures("queue")
def test_wrong_use(said: str, arguments: list[str]) -> None:
    fails(2, said, *arguments)


@pytest.mark.usefixtures("queue")
def test_an_unreachable_dynamodb_is_not_an_empty_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_store, "default_client", lambda: client_at("http://127.0.0.1:1"))
    fails(3, "did not answer", "match", "language=Spanish")


@pytest.fixture
def in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a table in a file, with two agents in line."""
    url = f"sqlite:///{tmp_path}/agents.db"
    monkeypatch.setenv("FRESHQ_MATCH_QUEUE", url)
    answer("create")
    for name in ("Billy King", "Ellen"):
        answer("register", name, "language=Spanish")
        answer("offer", name)
    return url


@pytest.mark.usefixtures("in_a_file")
def test_a_supervisor_sees_who_holds_an_agent_and_frees_it() -> None:
    (match,) = answer("match", "--queue", f"{os.environ['FRESHQ_MATCH_QUEUE']}?worker_name=desk-3")
    answer("request", "ann")
    held, other = answer("list", "--status", "MATCHED")["resources"]
    assert (held["resource_id"], held["worker"], held["caller_id"]) == ("Billy King", "desk-3", None)
    assert (other["resource_id"], other["caller_id"]) == ("Ellen", "ann")
    assert held["lease_until"] == pytest.approx(match["lease_until"])
    assert match["token"] not in freshq("list", "--json").output  # a secret of the holder
    shown = freshq("list").output
    assert re.search(r"Billy King +MATCHED .* desk-3, 5\d min \d+ s left", shown)
    assert re.search(r"Ellen +MATCHED .* ann, 5\d min \d+ s left", shown)
    fails(1, r"freshq match complete 'Billy King' --force", "unregister", "Billy King")
    fails(2, "token: missing; .*--force", "complete", "Billy King")
    fails(2, "token: missing; .*--force", "release", "Billy King")
    fails(2, "force: not with --token", "complete", "Billy King", "--token", "x", "--force")
    assert answer("complete", "Billy King", "--force")["status"] == "AVAILABLE"
    assert answer("unregister", "Billy King") == {"unregistered": "Billy King"}
    assert answer("release", "Ellen", "--force")["status"] == "QUEUED"
    fails(1, "it is QUEUED now", "complete", "Ellen", "--force")
    fails(1, "not registered", "release", "Billy King", "--force")


def test_the_order_and_the_lease_are_stored(in_a_file: str) -> None:
    assert answer("configure") == {"order": "fifo", "lease_seconds": 3600.0}
    fails(2, "order: the resources have fifo by default", "match", "--queue", f"{in_a_file}?order=lifo")
    assert answer("configure", "--order", "lifo", "--lease", "none") == {
        "order": "lifo",
        "lease_seconds": None,
    }
    (match,) = answer("match")
    assert (match["resource_id"], match["lease_until"]) == ("Ellen", None)
    (match,) = answer("match", "--lease", "60")  # of one command
    assert match["lease_until"] is not None
    fails(2, "order: must be fifo or lifo", "configure", "--order", "random")
    fails(
        2, "order: the resources have lifo stored", "withdraw", "Ellen", "--queue", f"{in_a_file}?order=fifo"
    )
