"""Downloads that can be interrupted at any moment: a `.part` file grows, is checked and renamed.

D4RL publishes no checksums, so the SHA-256 of the first download is kept beside the file (`<file>.sha256`)
and every later fetch is compared with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from surefoot.core.base.errors import DataError, DownloadError, printable
from surefoot.core.base.files import why, written_aside
from surefoot.data.catalogue import CATALOGUE
from surefoot.data.files import cache_folder, sha256_of

Progress = Callable[[int, int | None], None]

BLOCK = 1 << 18
PROGRESS = 1 << 16
"""Bytes beyond the most that there ever were which a connection must bring, or it counts as one without progress."""
SLOWEST = 1000.0
"""Bytes a second, over each `timeout`, below which a connection counts as lost."""
LARGEST = 1 << 36
"""Bytes of a file whose server doesn't tell its length."""
BEGINNINGS = {".hdf5": (b"\x89HDF\r\n\x1a\n",), ".h5": (b"\x89HDF\r\n\x1a\n",), ".npz": (b"PK\x03\x04", b"PK\x05\x06")}
"""Suffix -> how such a file begins; HDF5 may have 512 or more bytes of the user's before that."""
RETRIED_STATUS = (408, 425, 429, 500, 502, 503, 504)


def fetch(name: str, progress: Progress | None = None) -> pathlib.Path:
    """The cached file of a catalogue id, downloaded at first use.

    Raises:
        DownloadError: it could not be fetched.
        DataError: the cached file changed since it was downloaded.
    """
    entry = CATALOGUE[name]
    path = cache_folder() / "d4rl" / entry.file
    if not path.exists():
        return download(entry.url, path, progress=progress)
    if (wrong := _unlike(path, path.suffix)) is not None:
        raise DataError(f"{path}: {wrong}; delete it to fetch it again")
    known = sidecar_sha256(path)
    if known is not None and sha256_of(path) != known:
        raise DataError(
            f"{path}: changed since it was downloaded (its SHA-256 is not the one in {sidecar(path).name}); "
            "delete it to fetch it again"
        )
    return path


def download(
    url: str,
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    attempts: int = 4,
    pause: float = 0.5,
) -> pathlib.Path:
    """Fetch a URL into a file, continuing an earlier `.part` where the server still has the same file.

    Args:
        url: http or https.
        path: the final file; appears only when complete and checked.
        sha256: what it must be; else the one in `<path>.sha256`, where an earlier download left it.
        progress: called with the bytes so far and in all (None: the server doesn't say).
        timeout: seconds without any byte after which a connection counts as lost.
        attempts: connections tried in a row without progress: each must bring 64 kB more than ever were there.
        pause: seconds before the second attempt; doubled each time.

    Raises:
        DownloadError: no network, refused, incomplete after all attempts, slower than 1 kB/s, wrong checksum, a full
            disk, a web page or something else where the suffix says HDF5 or NPZ.
    """
    path = pathlib.Path(path)
    if not url.startswith(("http://", "https://")):
        raise DownloadError(f"{url}: only http and https can be fetched")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path):
            if path.exists():
                return path  # another process fetched it while this one waited
            part = _Part(path, url)
            try:
                _complete(part, progress, timeout, attempts, pause)
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(f"interrupted; {part.kept()} by the same command") from error
            _accept(part, path, sha256 or sidecar_sha256(path))
    except OSError as error:
        raise DownloadError(
            f"{path}: can't be written while fetching {url}: {why(error)}; what has arrived is kept"
        ) from error
    return path


@dataclasses.dataclass
class _Part:
    """The unfinished file, and what is known of the whole file."""

    path: pathlib.Path
    url: str

    @property
    def file(self) -> pathlib.Path:
        return self.path.with_name(self.path.name + ".part")

    @property
    def notes(self) -> pathlib.Path:
        return self.path.with_name(self.path.name + ".part.json")

    def size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def kept(self) -> str:
        """What becomes of the bytes so far, as a clause."""
        return f"the {self.size():,} bytes of {self.url} that have arrived are kept and continued"

    def remembered(self) -> dict[str, Any]:
        """Length and validator of the file that the bytes so far came from; empty where unknown."""
        try:
            notes = json.loads(self.notes.read_text(encoding="utf-8"))
            return notes if isinstance(notes, dict) and notes.get("url") == self.url else {}
        except (OSError, ValueError, RecursionError):
            return {}

    def begin(self, headers: Any, length: int | None) -> None:
        """Start from nothing, and remember which file this is."""
        self.file.write_bytes(b"")
        validator = headers.get("ETag") or headers.get("Last-Modified")
        if validator and validator.startswith("W/"):
            validator = headers.get("Last-Modified")  # weak tags don't promise equal bytes
        self.notes.write_text(json.dumps({"url": self.url, "length": length, "validator": validator}), encoding="utf-8")

    def discard(self) -> None:
        self.file.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)


def _complete(part: _Part, progress: Progress | None, timeout: float, attempts: int, pause: float) -> None:
    """Connect until the whole file has arrived; attempts count anew when more has arrived than ever before."""
    failures, reason, most = 0, "", part.size()
    while failures < attempts:
        if failures:
            time.sleep(pause * 2 ** (failures - 1))
        try:
            reason = _transfer(part, progress, timeout)
            if not reason:
                return
        except urllib.error.HTTPError as error:
            reason = " ".join(f"the server answered {error.code} {error.reason}".split())  # a redirect's has lines
            if error.code not in RETRIED_STATUS:
                raise DownloadError(
                    f"{part.url}: {reason}; check the address, or put the file at {part.path} yourself"
                ) from error
        except urllib.error.URLError as error:
            reason = f"can't reach the server ({error.reason})"
        except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = f"the connection was lost ({str(error) or type(error).__name__})"
        failures = 1 if part.size() >= most + PROGRESS else failures + 1
        most = max(most, part.size())
    kept = f" (the {part.size()} bytes that have arrived are kept and continued)" if part.size() else ""
    raise DownloadError(
        f"{part.url}: {reason}; check the network and try again{kept}, or put the file at {part.path} yourself"
    )


def _transfer(part: _Part, progress: Progress | None, timeout: float) -> str:
    """One connection; why the file is not complete after it, or an empty text."""
    notes, start = part.remembered(), part.size()
    validator, length = notes.get("validator"), notes.get("length")
    if start and not (notes and (validator or length)):
        start = 0
    if start and start == length:
        return ""
    request = urllib.request.Request(part.url, headers={"User-Agent": "surefoot", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        if validator:
            request.add_header("If-Range", validator)
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.discard()  # the server's file is shorter than what we have: another one
        return f"the server answered 416 to the bytes from {start} on: its file is another one now"
    with response:
        span = response.headers.get("Content-Range")
        if response.status == 206 and not (start and _continues(span, start, length)):
            part.discard()
            return f"the server answered with other bytes ({printable(str(span))[:80]}) than those from {start} on"
        if response.status != 206:
            start, length = 0, _length(response.headers)
            if length is not None and length > shutil.disk_usage(part.path.parent).free:
                raise DownloadError(f"{part.url}: has {length} bytes, which don't fit on the disk of {part.path}")
            part.begin(response.headers, length)
        return _append(part, response, start, length, progress, timeout)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https alone; urllib's own follows them to ftp as well."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request of the new address.

        Raises:
            DownloadError: it is of another kind.
        """
        if not newurl.lower().startswith(("http://", "https://")):
            raise DownloadError(f"{req.full_url}: leads to {newurl[:200]}; only http and https can be fetched")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _append(
    part: _Part, response: Any, start: int, length: int | None, progress: Progress | None, timeout: float
) -> str:
    """Write what arrives behind what is there; why the file is not complete after it, or an empty text."""
    done = since = start
    clock = time.monotonic()
    with open(part.file, "ab") as file:
        while block := response.read1(BLOCK):  # what has arrived: `read` would wait for a whole block
            file.write(block)
            file.flush()
            done += len(block)
            if progress is not None:
                progress(done, length)
            if done > (LARGEST if length is None else length):
                break
            if (elapsed := time.monotonic() - clock) > timeout:
                if done - since < SLOWEST * elapsed:
                    return f"only {done - since} bytes came in {elapsed:.0f} s"
                clock, since = time.monotonic(), done
    if done > (LARGEST if length is None else length):
        part.discard()
        return f"the server sent more than {LARGEST if length is None else length} bytes"
    return "" if length is None or done == length else "the connection ended early"


def _continues(content_range: str | None, start: int, length: int | None) -> bool:
    """Whether `bytes 100-199/200` begins at `start`, in a file of the length that we know."""
    try:
        span, total = (content_range or "").removeprefix("bytes ").split("/")
        return int(span.split("-")[0]) == start and (total == "*" or length is None or int(total) == length)
    except ValueError:
        return False


def _length(headers: Any) -> int | None:
    text = headers.get("Content-Length")
    return int(text) if text is not None and text.isdigit() else None


def _accept(part: _Part, path: pathlib.Path, known: str | None) -> None:
    """Look at the beginning, compare the checksum, keep it beside the file, and give the file its name."""
    if (wrong := _unlike(part.file, path.suffix)) is not None:
        part.discard()
        raise DownloadError(
            f"{part.url}: {wrong}; nothing was kept. Look at the address in a browser, and put the file at {path} "
            "yourself"
        )
    digest = sha256_of(part.file)
    if known is not None and digest != known.lower():
        part.discard()
        raise DownloadError(
            f"{part.url}: has SHA-256 {digest}, not the {known} that is known for {path.name}; nothing was "
            "kept: try again"
        )
    with written_aside(sidecar(path), DataError) as aside:
        aside.write_text(f"{digest}  {path.name}\n", encoding="utf-8")
    os.replace(part.file, path)
    part.notes.unlink(missing_ok=True)


def _unlike(path: pathlib.Path, suffix: str) -> str | None:
    """Why a file can't be what its suffix says, as a clause; None where it may be, or the suffix says nothing."""
    begins = BEGINNINGS.get(suffix.lower())
    if begins is None:
        return None
    with open(path, "rb") as file:
        head = file.read(1 << 12)
    places = (0, 512, 1024, 2048) if suffix.lower() != ".npz" else (0,)
    if any(head.startswith(begins, place) for place in places):
        return None
    page = head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<script"))
    what = "is a web page, perhaps one that asks for a login," if page else f"begins with {head[:12]!r}"
    return f"{what} where {suffix.removeprefix('.').upper()} is expected"


def sidecar(path: pathlib.Path) -> pathlib.Path:
    """Where the SHA-256 of a file is kept: beside it, in the layout of `sha256sum`."""
    return path.with_name(path.name + ".sha256")


def sidecar_sha256(path: pathlib.Path) -> str | None:
    """The SHA-256 kept beside a file, or None.

    Raises:
        DataError: what stands there is not one.
    """
    try:
        words = sidecar(path).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{sidecar(path)}: can't be read ({error}); delete it") from error
    if not words or len(words[0]) != 64 or not all(char in "0123456789abcdefABCDEF" for char in words[0]):
        raise DataError(f"{sidecar(path)}: does not begin with a SHA-256; delete it")
    return words[0].lower()


@contextlib.contextmanager
def _only_one(path: pathlib.Path) -> Iterator[None]:
    """Let one process at a time fetch this file: sweeps start many runs at once.

    The lock's file goes when the file is there, which is all that any other that waits for it looks for.
    """
    try:
        import fcntl
    except ImportError:  # Windows: two processes would only download twice
        yield
        return
    file = path.with_name(path.name + ".lock")
    with open(file, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise DownloadError(
                f"{file}: can't be locked ({why(error)}); set SUREFOOT_CACHE to a folder on another disk"
            ) from error
        yield
        if path.exists():
            file.unlink(missing_ok=True)
