"""Whether a server answers at all: trackers' own clients try for minutes before they say that none does."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request

SECONDS = 5.0
PORTS = {"http": 80, "https": 443}


def unreachable(url: str) -> str | None:
    """Why nothing answers at a URL's host; None where something does, or a proxy is in between.

    Args:
        url: of a server; of any scheme but http and https, such as file or sqlite, nothing is asked.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        return None
    if urllib.request.getproxies().get(parts.scheme) and not urllib.request.proxy_bypass(parts.hostname):
        return None
    try:
        socket.create_connection((parts.hostname, parts.port or PORTS[parts.scheme]), SECONDS).close()
    except OSError as error:
        return f"{url} can't be reached ({error.strerror or error})"
    return None
