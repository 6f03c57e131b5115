"""What the image is built from, without building it: `make image` does that, where buildah and debootstrap are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.deploy.test_deploy import SERVICES, all_of, in_build_context
from tools import image

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


def pip_runs() -> list[list[str]]:
    return [rest.split() for rest in all_of("RUN") if "/pip " in rest]


def test_the_image_installs_what_the_lock_names_and_nothing_else() -> None:
    fetch, install = pip_runs()

    assert "requirements.lock" in {source for rest in all_of("COPY") for source in rest.split()[:-1]}
    assert in_build_context("requirements.lock")
    assert fetch[1] == "download"
    assert {"--no-deps", "--require-hashes"} <= set(fetch)
    assert fetch[fetch.index("--requirement") + 1] == "requirements.lock"
    assert install[1] == "install"
    assert "--no-index" in install
    assert install[install.index("--find-links") + 1] == fetch[fetch.index("--dest") + 1]


def test_the_lock_has_hashes_for_all_that_the_image_needs_and_no_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = re.findall(r"\.\[([\w,]+)\]", " ".join(pip_runs()[-1]))[0].split(",")
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    wanted += [name for extra in extras for name in project["project"]["optional-dependencies"][extra]]
    entries = {entry.partition("==")[0]: entry for entry in re.split(r"\n(?=\S)", LOCK)}

    names = {re.split(r"[^\w-]", requirement)[0].lower() for requirement in wanted}
    for name in names - {project["project"]["name"]}:  # an extra may take in another one
        assert "--hash=sha256:" in entries.get(name, ""), f"{name} is not in requirements.lock; run: make lock"
    for text in (LOCK, (ROOT / "Dockerfile").read_text(), Path(image.__file__).read_text()):
        assert not re.search(r"--(extra-)?index-url|https?://(?!127\.0\.0\.1)", text)


def test_the_script_makes_the_base_that_the_dockerfile_names() -> None:
    name, suite = image.base()

    assert [rest.split()[0] for rest in all_of("FROM")] == [name, name]
    assert image.SUITES[name.rpartition(":")[2].partition("-")[0]] == suite


def test_the_script_runs_the_services_of_the_compose_file_with_ports_of_its_own() -> None:
    assert image.command_of("migrate")[1:] == SERVICES["migrate"]["command"]
    for name in ("api", "worker"):
        words = image.command_of(name, metrics_host="127.0.0.1", metrics_port="1")
        assert len(words) == len(SERVICES[name]["command"]) + 1
        assert words[words.index("--metrics-host") + 1 : words.index("--metrics-port") + 2] == [
            "127.0.0.1",
            "--metrics-port",
            "1",
        ]


def test_the_script_installs_nothing_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SystemExit) as ended:
        image.main()

    assert "buildah (apt-get install buildah)" in str(ended.value)
    assert "debootstrap (apt-get install debootstrap)" in str(ended.value)
