"""What ships in docker/: that its files agree with one another and with the program, as far as no engine is needed."""

import copy
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from orchestrator.cli import app

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [*sorted(DOCKER.rglob("*")), ROOT / "docs/cluster.md"]
    if path.is_file()
}
DOCUMENTS = {path.name: list(yaml.safe_load_all(path.read_text())) for path in sorted(DOCKER.rglob("*.yaml"))}
COMPOSE = DOCUMENTS["compose.yaml"][0]["services"]
CLUSTER, JOB = (DOCUMENTS[name][0]["spec"] for name in ("raycluster.yaml", "rayjob.yaml"))
LAUNCHER = DOCUMENTS["ray-cluster.yaml"][0]
SWEEPS = {"name": "sweeps", "configMap": {"name": "xsa-sweeps"}}
"""The volume of a RayJob's head. Nothing in it is optional: a job without its sweep would only fail, once a try."""


def pods() -> dict[str, Any]:
    """The spec of each kind of pod, by what it is."""
    database = next(one for one in DOCUMENTS["postgres.yaml"] if one["kind"] == "StatefulSet")
    return {
        "head": CLUSTER["headGroupSpec"]["template"]["spec"],
        "worker": CLUSTER["workerGroupSpecs"][0]["template"]["spec"],
        "submitter": JOB["submitterPodTemplate"]["spec"],
        "database": database["spec"]["template"]["spec"],
    }


def command_lines() -> Iterator[str]:
    """Each line that somebody or something is to run: of the files, of their comments, and of the guide."""
    for service in COMPOSE.values():
        command = service.get("command", "")
        yield command if isinstance(command, str) else shlex.join(command)
    yield JOB["entrypoint"]
    for key, commands in LAUNCHER.items():
        if key.endswith("_commands"):
            yield from commands
    for name, text in TEXTS.items():
        if name.endswith(".md"):
            for block in re.findall(r"^```(?:bash)?\n(.*?)^```", text, re.M | re.S):
                yield from block.replace("\\\n", " ").splitlines()
        else:
            yield from re.findall(r"^# {3}(.*)", text, re.M)


def calls(program: str) -> list[list[str]]:
    """The arguments of each call of a program in those lines."""
    found = []
    for line in command_lines():
        line = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", line)  # as compose fills in its defaults
        for part in re.split(r"&&|[;|]", line):
            words = shlex.split(part.split(" # ")[0])
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if "exec" in words[:5] and "head" in words:  # docker compose exec head COMMAND
                words = words[words.index("head") + 1 :]
            if words and words[0].rpartition("/")[2] == program:
                found.append(words[1:])
    return found


def parse(command: Any, name: str, arguments: list[str]) -> None:
    """Raise unless a Click command takes these arguments. Nothing is run."""
    context = command.make_context(name, list(arguments))
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        child, sub, rest = command.resolve_command(context, rest)
        parse(sub, child, rest)


def test_every_xsa_command_line_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in COMPOSE["quickstart"]["environment"].items():
        monkeypatch.setenv(name, value)
    found = calls("xsa")
    assert {call[0] for call in found} >= {"submit", "run", "cluster", "results"}
    for call in found:
        parse(typer.main.get_command(app), "xsa", call)


def test_every_ray_command_line_is_one() -> None:
    from ray.scripts.scripts import cli

    found = calls("ray")
    assert sum(call[0] == "start" for call in found) >= 5
    for call in found:
        parse(cli, "ray", call)


def test_versions_agree_everywhere() -> None:
    everything = "\n".join(TEXTS.values())
    assert set(re.findall(r"xsa-sweeps:([\w.]+)", everything)) == {PROJECT["version"]}
    assert {CLUSTER["rayVersion"]} == {PINS["ray"]}
    assert len(set(re.findall(r"image: (postgres:\S+)", everything))) == 1
    python = re.findall(r"python:(\d+\.\d+\.\d+)-slim", TEXTS["docker/Dockerfile"])
    assert set(python) == set(re.findall(r"--python (\d\S+)", TEXTS["docker/ray-cluster.yaml"]))
    assert python[0].startswith(PROJECT["requires-python"].removeprefix(">=") + ".")


@pytest.mark.parametrize("image", re.findall(r"(?:image|FROM):? ([\w./-]+:\S+)", "\n".join(TEXTS.values())))
def test_images_are_pinned(image: str) -> None:
    assert re.search(r":\d+\.\d+", image)


def test_the_image_has_every_package_and_extra() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored, "what is not named stays out"
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    needed = {name.partition(".")[0] for name in packages} | {"pyproject.toml", "constraints.txt", "sweeps"}
    needed |= {PROJECT["readme"], PROJECT["license-files"][0]}
    assert needed == {line[1:] for line in ignored if line.startswith("!")}
    asked = re.findall(r"^ARG EXTRAS=(\S+)", TEXTS["docker/Dockerfile"], re.M)[0].split(",")
    assert {"cluster", "postgres", "evals"} <= set(asked) <= PROJECT["optional-dependencies"].keys() - {"dev"}


def test_nothing_runs_as_root() -> None:
    users = re.findall(r"^USER (\S+)", TEXTS["docker/Dockerfile"], re.M)
    assert users == ["1000:1000"]
    for pod in pods().values():
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_no_password_or_token_is_written_anywhere() -> None:
    for name, text in TEXTS.items():
        assert not re.search(r"postgres\w*://[^/@\s]*:[^/@\s]*@", text), name
    for line in command_lines():
        assert not re.search(r"(PASSWORD|TOKEN)=|--from-literal", line), line
    for pod in pods().values():
        for one in (env for container in pod["containers"] for env in container.get("env", [])):
            assert ("valueFrom" in one) == ("PASSWORD" in one["name"]), one["name"]
    for service in COMPOSE.values():
        for key in service.get("environment", {}):
            assert not re.search(r"(PASSWORD|TOKEN)$", key), key


def volumes(service: str) -> dict[str, str]:
    """Where a service of compose.yaml has which volume."""
    mounts = (mount.split(":") for mount in COMPOSE[service].get("volumes", []))
    return {name: place for name, place, *_ in mounts}


def test_one_service_builds_the_image_and_none_asks_a_registry_for_it() -> None:
    own = {name: service for name, service in COMPOSE.items() if service["image"].startswith("xsa-sweeps:")}
    assert len({service["image"] for service in own.values()}) == 1
    assert [name for name, service in COMPOSE.items() if "build" in service] == ["secrets"]
    assert {service["pull_policy"] for service in own.values()} == {"never"}


def test_the_database_s_password_is_the_head_s_and_the_database_s_alone() -> None:
    assert [name for name in COMPOSE if "secrets" in volumes(name)] == ["secrets", "db", "head"]
    for name, service in COMPOSE.items():
        secret = [value for value in service.get("environment", {}).values() if value.startswith("/secrets/")]
        assert bool(secret) == (name in ("db", "head")), name
    for name in ("worker", "gpu-worker"):
        assert COMPOSE[name]["environment"].keys() == {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}
    assert "env" not in pods()["worker"]["containers"][0]
    assert not any("DB" in line or "PG" in line for line in LAUNCHER["worker_start_ray_commands"])


def test_services_find_the_secrets_where_they_are_drawn(tmp_path: Path) -> None:
    program, *text = COMPOSE["secrets"]["command"]
    assert program == "python"
    places = volumes("secrets")
    made = re.findall(r"install -d -o xsa -g xsa (.*)", TEXTS["docker/Dockerfile"])[0].split()
    for place in places.values():
        (tmp_path / place[1:]).mkdir()
        assert place in made, "else the volume is root's"
        text[1] = text[1].replace(f'"{place}', f'"{tmp_path}{place}')

    def drawn() -> dict[str, str]:
        subprocess.run([sys.executable, *text], check=True)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {"/" + path.relative_to(tmp_path).as_posix(): path.read_text() for path in files}

    first = drawn()
    assert all((tmp_path / name[1:]).stat().st_mode & 0o077 == 0 for name in first)
    for name in COMPOSE.keys() - {"secrets"}:
        for value in COMPOSE[name].get("environment", {}).values():
            if value.startswith(tuple(places.values())):
                assert value in first, name
                assert Path(value).parent.as_posix() in volumes(name).values(), name
    host, port, database, user, password = first["/secrets/pgpass"].strip().split(":")
    assert f"postgresql://{user}@{host}/{database}" == COMPOSE["head"]["environment"]["XSA_DB"]
    assert port == "5432"
    assert password == first["/secrets/db_password"]
    assert len(password) == len(first["/token/ray_token"]) == 64
    assert drawn() == first, "a second start keeps them: the database knows the first"


def test_every_cluster_asks_for_a_token() -> None:
    assert all(
        COMPOSE[name]["environment"]["RAY_AUTH_MODE"] == "token" for name in ("head", "worker", "quickstart")
    )
    assert CLUSTER["authOptions"]["mode"] == "token"
    for kind in ("head", "worker"):
        assert "RAY_AUTH_MODE=token" in LAUNCHER[f"{kind}_start_ray_commands"][-1]


def test_ports_are_open_to_this_machine_alone() -> None:
    published = [port for service in COMPOSE.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_a_job_server_listens_where_jobs_are_sent_to() -> None:
    heads = [call for call in calls("ray") if call[:2] == ["start", "--head"]]
    tunnelled = [call for call in heads if "--autoscaling-config=~/ray_bootstrap_config.yaml" in call]
    assert len(tunnelled) == 1
    assert ["dashboard", "docker/ray-cluster.yaml"] in calls("ray"), "its tunnel"
    assert len(heads) >= 3
    assert all("--dashboard-host=0.0.0.0" in call for call in heads if call not in tunnelled)


def test_heads_train_nothing() -> None:
    heads = [call for call in calls("ray") if call[:2] == ["start", "--head"]]
    assert len(heads) >= 2
    assert all("--num-cpus=0" in call for call in heads)
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert LAUNCHER["available_node_types"]["head"]["resources"] == {"CPU": 0, "GPU": 0}


def test_compose_begins_with_what_others_wait_for() -> None:
    conditions = {"service_healthy": "healthcheck", "service_completed_successfully": "command"}
    for service in COMPOSE.values():
        for other, wait in service.get("depends_on", {}).items():
            assert conditions[wait["condition"]] in COMPOSE[other]
    assert COMPOSE["quickstart"]["depends_on"].keys() == {"db", "head", "worker"}


def test_a_rayjob_is_retried_on_the_same_cluster_as_raycluster() -> None:
    assert JOB["backoffLimit"] > 0
    assert JOB["shutdownAfterJobFinishes"]
    assert JOB["ttlSecondsAfterFinished"] > 0
    spec = copy.deepcopy(JOB["rayClusterSpec"])
    head = spec["headGroupSpec"]["template"]["spec"]
    head["volumes"].remove(SWEEPS)
    head["containers"][0]["volumeMounts"].remove({"name": "sweeps", "mountPath": "/sweeps"})
    assert spec == CLUSTER


def test_a_rayjob_waits_for_its_sweep_which_is_looked_at_before() -> None:
    made = re.findall(r"create configmap (\S+) --from-file=(\S+)", "\n".join(TEXTS.values()))
    assert set(made) == {(SWEEPS["configMap"]["name"], "sweeps/lr.yaml")}
    assert JOB["entrypoint"] == "xsa run /sweeps/lr.yaml"
    assert ["plan", "sweeps/lr.yaml"] in calls("xsa")


def test_one_version_of_kuberay_is_asked_for() -> None:
    versions = re.findall(r"(\d+\.\d[\d.]*) or newer", "\n".join(TEXTS.values()))
    assert len(versions) == 3
    assert set(versions) == {"1.6"}, "preRunningDeadlineSeconds came with it"


def test_groups_have_a_fixed_size() -> None:
    for group in CLUSTER["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    workers = LAUNCHER["available_node_types"]["gpu"]
    assert workers["min_workers"] == workers["max_workers"] == LAUNCHER["max_workers"]


def test_ray_s_launcher_takes_its_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(LAUNCHER))
    with pytest.raises(Exception, match="initialisation_commands"):
        validate_config(prepare_config(LAUNCHER | {"initialisation_commands": []}))
