"""Build the image of the Dockerfile without a Docker engine or a registry of images, and run it: `make image`.

Debian's debootstrap makes the base image that the Dockerfile names, buildah builds on it in a chroot. Then a database is
migrated, and a job that is submitted to the API of one container is run by the worker of another, with the commands and
logins of compose.yaml. Nothing is installed: what is missing is named. Containers share the network of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import yaml  # type: ignore[import-untyped]

from faultline.embedded import copies, find_binaries, keeper
from faultline.embedded.account import account_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
IMAGE = "localhost/faultline"
PROGRAM = "/opt/faultline/bin/"
#: The release of Debian that has the Python of a base image.
SUITES = {"3.11": "bookworm", "3.13": "trixie"}
PACKAGES = ("python3", "python3-venv", "python-is-python3", "ca-certificates")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
#: What everybody may write to on any Debian.
OPEN_TO_ALL = {"/tmp", "/var/tmp", "/run/lock"}  # noqa: S108
_PATIENCE_SECONDS = 120.0


class Trouble(Exception):
    """Something is missing or did not work; the text says what to do."""


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - whoever runs this watches it


def of_dockerfile(word: str) -> list[str]:
    """What follows an instruction, for each line that begins with it."""
    return re.findall(rf"^{word} (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def base() -> tuple[str, str]:
    """The base image that the Dockerfile names, and the release of Debian to make it from."""
    (name,) = {line.split()[0] for line in of_dockerfile("FROM")}
    version = name.rpartition(":")[2].partition("-")[0]
    if version not in SUITES:
        raise Trouble(
            f"no release of Debian is known to have the Python of {name}: add it to SUITES in {Path(__file__).name}"
        )
    return name, SUITES[version]


def user_of_image() -> int:
    return int(of_dockerfile("USER")[-1].partition(":")[0])


def command_of(service: str, **options: str) -> list[str]:
    """The words a service of compose.yaml is run with, with these values for its options."""
    words = ["faultline", *yaml.safe_load((ROOT / "compose.yaml").read_text())["services"][service]["command"]]
    for option, value in options.items():
        words[words.index("--" + option.replace("_", "-")) + 1] = value
    return words


def what_is_missing() -> list[str]:
    missing = [f"{name} (apt-get install {name})" for name in ("buildah", "debootstrap") if not shutil.which(name)]
    if os.geteuid() != 0:
        missing.append("the rights of root, without which there is no chroot (sudo make image)")
    return missing


class Buildah:
    """buildah with a storage of its own, so that nothing of the machine's is touched."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.words = ["buildah", "--root", str(work / "storage"), "--runroot", str(work / "run"), "--storage-driver", "vfs"]

        #: For this run only, and in a file: what stands on a command line can be read by everybody.
        self.password = secrets.token_hex(16)

    def __call__(self, *words: str, log: str = "buildah.log") -> str:
        return run([*self.words, *words], self.work / log)

    def in_container(self, container: str, *words: str, dsn: str = "") -> str:
        return self(*self._run(container, dsn), *words)

    def _run(self, container: str, dsn: str) -> list[str]:
        known = self.work / "pgpass"
        known.touch(mode=0o600)
        os.chown(known, user_of_image(), -1)
        known.write_text(f"*:*:*:*:{self.password}\n")
        words = ["run", "--isolation", "chroot", "--volume", f"{known}:/run/pgpass:ro", "--env", "PGPASSFILE=/run/pgpass"]
        return [*words, "--env", f"FAULTLINE_DSN={dsn}", container, "--"]

    @contextlib.contextmanager
    def service(self, container: str, words: list[str], dsn: str) -> Iterator[Callable[[], int]]:
        """A command that goes on. Gives the user id it has, once it runs; ends it, and expects it to end in order."""
        log = self.work / f"{container}.log"
        with log.open("wb") as output:
            command = [*self.words, *self._run(container, dsn), *words]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

        def user() -> int:
            found = wait_for(lambda: inside(process.pid), f"{container} does not start; see {log}")
            return int(Path(f"/proc/{found}/status").read_text().partition("Uid:")[2].split()[1])  # the effective one

        try:
            yield user
        finally:
            for stop in (signal.SIGTERM, signal.SIGKILL):
                if (found := inside(process.pid)) is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(found, stop)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_SECONDS)
                    break
            else:
                process.kill()
                process.wait()
        if process.returncode != 0:
            raise Trouble(f"{container} ended with exit code {process.returncode}; see {log}")


def run(command: list[str], log: Path) -> str:
    with log.open("ab") as errors:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, check=False)
    if done.returncode != 0:
        said = (done.stdout.decode(errors="replace") + log.read_text(errors="replace")).strip().splitlines()
        raise Trouble("\n".join([f"`{' '.join(command)}` failed; all of it is in {log}:", *said[-15:]]))
    return done.stdout.decode(errors="replace").strip()


def inside(pid: int) -> int | None:
    """The process of Faultline below a `buildah run`, which is a child of its children."""
    with contextlib.suppress(OSError):  # one that has just ended
        if Path(f"/proc/{pid}/cmdline").read_text().startswith(PROGRAM):
            return pid
        # Of every thread: a child belongs to the one that has started it.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                if (found := inside(int(child))) is not None:
                    return found
    return None


def wait_for(what: Callable[[], Any], otherwise: str) -> Any:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while not (found := what()):
        if time.monotonic() > give_up:
            raise Trouble(otherwise)
        time.sleep(0.1)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# The image


def make_base(buildah: Buildah) -> None:
    name, suite = base()
    if buildah("images", "--quiet", "--filter", f"reference=localhost/{name}"):
        return
    folder = buildah.work / "base"
    if folder.exists():
        if os.path.ismount(folder / "proc"):  # of a run that was killed
            run(["umount", str(folder / "proc")], buildah.work / "debootstrap.log")
        shutil.rmtree(folder)
    say(f"making {name} from Debian {suite} (once, some minutes)")
    words = ["--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(folder)]
    (buildah.work / "debootstrap.out").write_text(run(["debootstrap", *words], buildah.work / "debootstrap.log"))
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(folder), "/")
    buildah("commit", "--quiet", "--rm", container, f"localhost/{name}")
    shutil.rmtree(folder)


def build(buildah: Buildah) -> None:
    make_base(buildah)
    say("building the Dockerfile")
    # Whoever reaches the package index through a proxy trusts its certificate, and so must the build.
    trusted = ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
    words = ["--isolation", "chroot", "--pull-never", "--format", "docker", *trusted, "--tag", IMAGE, str(ROOT)]
    (buildah.work / "build.out").write_text(buildah("build", *words, log="build.log"))


# The trial


@contextlib.contextmanager
def postgres(work: Path, password: str) -> Iterator[Callable[[str], str]]:
    """A database with the logins of compose.yaml, for this trial alone. Gives the DSN of a login."""
    # Not in `work`: PostgreSQL does not run as root, and whom it runs as may not be able to enter that.
    folder, port = Path(tempfile.mkdtemp(prefix="faultline-image-")), free_port()
    word = folder / "password"
    word.write_text(password)
    account = account_for(folder)
    for path in (folder, word):
        os.chown(path, account.uid, account.gid)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        binaries = stack.enter_context(copies.usable_by(account, find_binaries()))
        words = ["-D", str(folder / "data"), "-U", "postgres", "-A", "scram-sha-256", f"--pwfile={word}"]
        made = account.run([binaries.program("initdb"), *words, "--no-sync", "--encoding=UTF8", "--locale=C"])
        if made.returncode != 0:
            raise Trouble(f"initdb failed in {folder} as user {account.name}:\n{made.stdout}{made.stderr}")
        settings = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", "fsync": "off"}
        with (work / "postgresql.log").open("wb") as log:
            server = subprocess.Popen(
                [binaries.program("postgres"), "-D", str(folder / "data"), *(f"--{k}={v}" for k, v in settings.items())],
                stdout=log,
                stderr=log,
                cwd="/",
                env=keeper.environment(),
                user=account.uid,
                group=account.gid,
                extra_groups=[],
            )
        stack.callback(server.wait)
        stack.callback(server.send_signal, signal.SIGINT)  # its fast way to stop

        def dsn(login: str, database: str = "faultline") -> str:
            return f"postgresql://{login}@127.0.0.1:{port}/{database}"

        _make_logins(dsn, password)
        yield dsn


def _make_logins(dsn: Callable[..., str], password: str) -> None:
    def connect() -> psycopg.Connection | None:
        with contextlib.suppress(psycopg.OperationalError):
            return psycopg.connect(dsn("postgres", "postgres"), password=password, autocommit=True)
        return None

    text = (ROOT / "deploy/postgres/logins.sql").read_text()
    with wait_for(connect, "the database does not start; see postgresql.log") as connection:
        connection.execute("create database faultline")
        connection.execute(text)
        for login in re.findall(r"create role (\w+) login", text):
            connection.execute(f"alter role {login} password '{password}'")


def ask(address: str, key: str = "", job: dict[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(address, None if job is None else json.dumps(job).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - an address of our own
        return json.load(answer)


def trial(buildah: Buildah) -> None:
    wanted = user_of_image()
    with contextlib.ExitStack() as stack:
        buildah("rm", "--all")  # of a run that was killed
        stack.callback(buildah, "rm", "--all")
        for name in ("migrate", "api", "worker"):
            buildah("from", "--pull-never", "--name", f"faultline-{name}", IMAGE)
        once = "faultline-migrate"

        user = buildah.in_container(once, "id", "-u")
        look = (
            "find / -xdev -not -type l -writable -not -path '/proc/*' -not -path '/sys/*' -not -path '/dev/*' 2> /dev/null"
        )
        writable = set(buildah.in_container(once, "sh", "-c", f"{look} || true").split()) - OPEN_TO_ALL
        check(user == str(wanted), f"a container runs as user {user}, not as {wanted}")
        check(not writable, f"user {wanted} may write to {sorted(writable)} of the image")
        say(f"a container runs as user {user}, who may change nothing of the image")

        dsn = stack.enter_context(postgres(buildah.work, buildah.password))
        owner = dsn("faultline_owner")
        buildah.in_container(once, *command_of("migrate"), dsn=owner)
        made = buildah.in_container(once, "faultline", "api-keys", "create", "me", "--scope", "admin", "--json", dsn=owner)
        key = json.loads(made.splitlines()[-1])["key"]
        say("migrate: the schema is there, and a key")

        port = free_port()
        local = {"metrics_host": "127.0.0.1"}
        api = command_of("api", host="127.0.0.1", port=str(port), metrics_port=str(free_port()), **local)
        worker = command_of("worker", metrics_port=str(free_port()), **local)
        api_user = stack.enter_context(buildah.service("faultline-api", api, dsn("shop_api")))
        worker_user = stack.enter_context(buildah.service("faultline-worker", worker, dsn("shop_worker")))

        def healthy() -> bool:
            with contextlib.suppress(OSError):
                return bool(ask(f"http://127.0.0.1:{port}/health"))
            return False

        wait_for(healthy, f"the API does not answer; see {buildah.work / 'faultline-api.log'}")
        for name, found in (("api", api_user()), ("worker", worker_user())):
            check(found == wanted, f"{name} runs as user {found}, not as {wanted}")
            say(f"{name}: runs as user {found}")

        jobs = f"http://127.0.0.1:{port}/api/v1/jobs"
        job = ask(jobs, key, {"task": "mail", "queue": "mail", "args": {"order": 1, "subject": "From a container"}})["id"]

        def ended() -> dict[str, Any] | None:
            seen: dict[str, Any] = ask(f"{jobs}/{job}", key)
            return seen if seen["state"] not in {"queued", "running"} else None

        seen = wait_for(ended, f"job {job} does not end; see {buildah.work / 'faultline-worker.log'}")
        check(seen["state"] == "succeeded", f"job {job} was to succeed: {seen}")
        say(f"job {job}: submitted to the API, run by the worker, {seen['state']}: {seen.get('result')}")
    say("api and worker: stopped in order")


def check(holds: bool, otherwise: str) -> None:  # noqa: FBT001
    if not holds:
        raise Trouble(otherwise)


def main() -> None:
    if missing := what_is_missing():
        sys.exit("The image can not be built here. It needs:\n  " + "\n  ".join(missing))
    work = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/image").absolute()
    work.mkdir(parents=True, exist_ok=True)
    buildah = Buildah(work)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and not before all is cleared up
    try:
        build(buildah)
        trial(buildah)
    except Trouble as trouble:
        sys.exit(str(trouble))
    say(f"{IMAGE} is in {work / 'storage'}; to take it elsewhere:")
    say(f"  {' '.join(buildah.words)} push {IMAGE} docker-archive:faultline.tar")


if __name__ == "__main__":
    main()
