"""Downloads against a local HTTP server that can be made to misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from make_files import random_walk, write_hdf5

from surefoot.core.base.errors import DataError, DownloadError
from surefoot.data import download, load

CONTENT = bytes(range(256)) * 4000  # about 1 MB


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT, with ranges; what it does wrong is set by the tests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag: str | None = '"one"'
        self.cut_after: list[int] = []  # of each next answer: bytes after which the connection is cut
        self.statuses: list[int] = []  # of each next answer: an error to give instead
        self.ranges = True
        self.requests: list[str | None] = []  # Range header of each request
        self.ranges_answered_by: str | None = None  # "416", or a wrong Content-Range
        self.leads_to = ""  # where to, of all requests
        self.endless = 0  # bytes of each block that is sent for ever, without a length

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers.get("Range")
        server.requests.append(wanted)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        if server.leads_to:
            self.send_response(302)
            self.send_header("Location", server.leads_to)
            self.end_headers()
            return
        if wanted and server.ranges_answered_by is not None:
            wrong = server.ranges_answered_by
            self.send_response(416 if wrong == "416" else 206)
            self.send_header("Content-Range", wrong)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if server.endless:
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(bytes(server.endless))
                    time.sleep(0.02)
        start, total = 0, len(server.content)
        fresh = self.headers.get("If-Range") in (None, server.etag)
        if wanted and server.ranges and fresh:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(total - start))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        body = server.content[start:]
        if server.cut_after:
            body = body[: server.cut_after.pop(0)]
            self.close_connection = True
        with contextlib.suppress(OSError):  # a client that was interrupted
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def names(folder: pathlib.Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir() if not item.name.endswith(".lock"))


def test_a_file_arrives_whole_with_progress_and_its_checksum(server: Server, tmp_path: pathlib.Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = download(f"{server.url}/a", tmp_path / "a", progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert names(tmp_path) == ["a", "a.sha256"]
    assert not (tmp_path / "a.lock").exists()
    assert (tmp_path / "a.sha256").read_text().split() == [hashlib.sha256(CONTENT).hexdigest(), "a"]


def test_a_cut_connection_is_continued_where_it_ended(server: Server, tmp_path: pathlib.Path) -> None:
    server.cut_after = [300_000, 400_000]
    download(f"{server.url}/a", tmp_path / "a", pause=0.01)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.requests == [None, "bytes=300000-", "bytes=700000-"]


def test_an_interrupted_download_is_kept_and_continued_by_the_next_call(server: Server, tmp_path: pathlib.Path) -> None:
    server.cut_after = [300_000, 0, 0]
    with pytest.raises(DownloadError, match=r"300000 bytes that have arrived are kept"):
        download(f"{server.url}/a", tmp_path / "a", attempts=3, pause=0.01)
    assert names(tmp_path) == ["a.part", "a.part.json"]
    server.requests.clear()
    download(f"{server.url}/a", tmp_path / "a")
    assert server.requests == ["bytes=300000-"]
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("etag", ['"one"', None])
def test_a_file_that_changed_meanwhile_starts_again(server: Server, tmp_path: pathlib.Path, etag: str | None) -> None:
    server.etag = etag
    server.cut_after = [300_000]
    with pytest.raises(DownloadError):
        download(f"{server.url}/a", tmp_path / "a", attempts=1)
    server.content = CONTENT[::-1] + b"longer"
    server.etag = '"two"' if etag else None
    download(f"{server.url}/a", tmp_path / "a", pause=0.01)
    assert (tmp_path / "a").read_bytes() == server.content


def test_a_file_that_became_shorter_starts_again(server: Server, tmp_path: pathlib.Path) -> None:
    server.cut_after = [300_000]
    with pytest.raises(DownloadError):
        download(f"{server.url}/a", tmp_path / "a", attempts=1)
    server.content = CONTENT[:1000]
    download(f"{server.url}/a", tmp_path / "a", pause=0.01)
    assert (tmp_path / "a").read_bytes() == CONTENT[:1000]


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: pathlib.Path) -> None:
    server.ranges, server.cut_after = False, [300_000]
    download(f"{server.url}/a", tmp_path / "a", pause=0.01)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_nothing_kept(server: Server, tmp_path: pathlib.Path) -> None:
    with pytest.raises(DownloadError, match=hashlib.sha256(CONTENT).hexdigest()):
        download(f"{server.url}/a", tmp_path / "a", sha256="0" * 64)
    assert names(tmp_path) == []


def test_a_later_download_must_have_the_first_ones_checksum(server: Server, tmp_path: pathlib.Path) -> None:
    download(f"{server.url}/a", tmp_path / "a").unlink()
    server.content = CONTENT[::-1]
    with pytest.raises(DownloadError, match=r"is known for a"):
        download(f"{server.url}/a", tmp_path / "a")


def test_busy_servers_are_asked_again_but_missing_files_are_not(server: Server, tmp_path: pathlib.Path) -> None:
    server.statuses = [503, 429]
    download(f"{server.url}/a", tmp_path / "a", pause=0.01)
    server.statuses, server.requests = [404], []
    with pytest.raises(DownloadError, match=r"404"):
        download(f"{server.url}/b", tmp_path / "b", pause=0.01)
    assert len(server.requests) == 1
    assert names(tmp_path) == ["a", "a.sha256"]


def test_no_network_is_one_sentence(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refuses
        with pytest.raises(DownloadError, match=r"can't reach the server.*check the network.*put the file at"):
            download(f"http://127.0.0.1:{taken.getsockname()[1]}/a", tmp_path / "a", attempts=2, pause=0.01)
    with pytest.raises(DownloadError, match=r"only http"):
        download("file:///etc/passwd", tmp_path / "a")


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("ftp://127.0.0.1/a", "leads to ftp://127.0.0.1/a; only http and https can be fetched"),
        ("file:///etc/passwd", "is not allowed"),
        ("", "infinite loop"),
    ],
)
def test_a_redirect_to_nowhere_is_one_sentence(server: Server, tmp_path: pathlib.Path, to: str, words: str) -> None:
    server.leads_to = to or f"{server.url}/a"
    with pytest.raises(DownloadError, match=words) as caught:
        download(f"{server.url}/a", tmp_path / "a", attempts=2, pause=0.01)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_server_that_fails_says_nothing_of_bytes_where_none_came(server: Server, tmp_path: pathlib.Path) -> None:
    server.statuses = [500, 500]
    with pytest.raises(DownloadError, match=r"500 Internal Server Error; check the network and try again, or put the"):
        download(f"{server.url}/a", tmp_path / "a", attempts=2, pause=0.01)


def test_ctrl_c_says_that_what_has_arrived_is_kept(server: Server, tmp_path: pathlib.Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(
        KeyboardInterrupt, match=r"interrupted; the [\d,]+ bytes of http.*/a that have arrived are kept"
    ):
        download(f"{server.url}/a", tmp_path / "a", progress=interrupt)
    kept = (tmp_path / "a.part").stat().st_size
    assert kept > 0
    download(f"{server.url}/a", tmp_path / "a")
    assert server.requests == [None, f"bytes={kept}-"]


def test_a_silent_server_is_given_up(tmp_path: pathlib.Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(DownloadError, match=r"timed out"):
            download(url, tmp_path / "a", attempts=2, pause=0.01, timeout=0.1)


def test_a_full_disk_is_named_and_what_arrived_is_kept(server: Server, tmp_path: pathlib.Path) -> None:
    import subprocess
    import sys

    program = (
        "import resource, sys; from surefoot.data import download; from surefoot.core.base.errors import "
        "DownloadError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
        f"try: download({server.url + '/a'!r}, {str(tmp_path / 'a')!r})\n"
        "except DownloadError as error: print(error); sys.exit(2)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 2, run.stderr
    assert "free some space" in run.stdout
    assert str(tmp_path / "a") in run.stdout
    kept = (tmp_path / "a.part").stat().st_size
    assert 0 < kept <= 400_000
    server.requests.clear()
    download(f"{server.url}/a", tmp_path / "a")  # there is space again
    assert server.requests == [f"bytes={kept}-"]
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_two_at_once_fetch_once(server: Server, tmp_path: pathlib.Path) -> None:
    workers = [threading.Thread(target=download, args=(f"{server.url}/a", tmp_path / "a")) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_catalogue_ids_are_fetched_once_and_watched(
    server: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = random_walk()
    del arrays["timeouts"]
    server.content = write_hdf5(tmp_path / "a.hdf5", arrays).read_bytes()
    monkeypatch.setenv("SUREFOOT_D4RL_URL", server.url)
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))
    data = load("d4rl/hopper-medium-v2")
    assert (data.name, data.env_id, len(data)) == ("d4rl/hopper-medium-v2", "Hopper-v5", 300)
    assert data.attributes["d4rl_env_id"] == "hopper-medium-v2"
    load("d4rl/hopper-medium-v2")
    assert len(server.requests) == 1
    cached = tmp_path / "cache" / "datasets" / "d4rl" / "gym_mujoco_v2" / "hopper_medium-v2.hdf5"
    cached.write_bytes(cached.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"changed since it was downloaded"):
        load("d4rl/hopper-medium-v2")


@pytest.mark.parametrize("answer", ["416", "bytes 0-10/1024000", "nonsense", "bytes 5-\x1b[2J/9"])
def test_a_server_that_drops_and_answers_wrongly_is_asked_a_bounded_number_of_times(
    server: Server, tmp_path: pathlib.Path, answer: str
) -> None:
    server.cut_after = [300_000] * 1000
    server.ranges_answered_by = answer
    with pytest.raises(DownloadError, match="check the network and try again") as caught:
        download(f"{server.url}/a", tmp_path / "a", attempts=3, pause=0.001)
    assert "\x1b" not in str(caught.value)
    assert len(server.requests) <= 8
    assert not (tmp_path / "a").exists()


def test_a_server_that_gives_a_few_bytes_each_time_is_asked_a_bounded_number_of_times(
    server: Server, tmp_path: pathlib.Path
) -> None:
    server.cut_after = [10] * 100_000
    with pytest.raises(DownloadError, match="the connection"):
        download(f"{server.url}/a", tmp_path / "a", attempts=3, pause=0.001)
    assert len(server.requests) <= 6


def test_a_server_that_never_ends_is_left_when_it_is_too_slow_or_sends_too_much(
    server: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.endless = 1
    with pytest.raises(DownloadError, match=r"only \d+ bytes came in"):
        download(f"{server.url}/a", tmp_path / "a", attempts=2, pause=0.001, timeout=0.2)
    server.endless = 1 << 20
    monkeypatch.setattr(sys.modules["surefoot.data.download"], "LARGEST", 3 << 20)
    with pytest.raises(DownloadError, match="the server sent more than 3145728 bytes"):
        download(f"{server.url}/b", tmp_path / "b", attempts=2, pause=0.001)
    assert names(tmp_path) == ["a.part", "a.part.json"]


@pytest.mark.parametrize("name", ["a.hdf5", "a.npz"])
def test_a_login_page_is_refused_and_not_kept(server: Server, tmp_path: pathlib.Path, name: str) -> None:
    server.content = b"\n<!DOCTYPE html><html><body>Please log in</body></html>"
    with pytest.raises(DownloadError, match=r"is a web page, perhaps one that asks for a login, where .* is expected"):
        download(f"{server.url}/{name}", tmp_path / name)
    server.content = b"something else"
    with pytest.raises(DownloadError, match="begins with b'something el' where"):
        download(f"{server.url}/{name}", tmp_path / name)
    assert names(tmp_path) == []
