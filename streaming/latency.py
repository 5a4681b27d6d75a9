"""How long steps take: a histogram of fixed logarithmic bins, that costs no memory and next to no time."""

from __future__ import annotations

from array import array

PARTS = 16
"""Bins in each doubling of time: a bin is at most 1 / 16 wide, relative to its lower edge."""
_LOW = 7  # times below 2**7 = 128 ns share bin 0
_HIGH = 37  # and those above 2**37 ns, two minutes, the last


class Latency:
    """Counts of durations from 128 ns to two minutes, with percentiles to 6%; the longest is kept exactly."""

    def __init__(self) -> None:
        self.counts = array("q", bytes(8 * ((_HIGH - _LOW) * PARTS + 2)))
        self.count = 0
        """Durations so far."""
        self.longest_us = 0.0
        """In microseconds."""

    def add(self, nanoseconds: int) -> None:
        """Count one duration."""
        self.counts[_bin(nanoseconds)] += 1
        self.count += 1
        if nanoseconds > 1000 * self.longest_us:
            self.longest_us = nanoseconds / 1000

    def percentile(self, share: float) -> float:
        """Microseconds that a `share` (0 to 100) of the durations stayed below: an upper edge; NaN without any."""
        if self.count == 0:
            return float("nan")
        needed, seen = share / 100 * self.count, 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= needed:
                return min(_upper_edge(index) / 1000, self.longest_us)
        return self.longest_us

    def summary(self) -> dict[str, float]:
        """Count, and microseconds at the median, 99th and 99.9th percentile and the longest."""
        named = {"p50_us": 50.0, "p99_us": 99.0, "p99.9_us": 99.9}
        return {
            "count": self.count,
            **{name: self.percentile(share) for name, share in named.items()},
            "longest_us": self.longest_us,
        }

    def __str__(self) -> str:
        """A histogram as text: a line for each doubling of time, and the percentiles."""
        if self.count == 0:
            return "no durations yet"
        groups: dict[int, int] = {}
        for index, count in enumerate(self.counts):
            if count:
                octave = max(index - 1, 0) // PARTS if index else -1
                groups[octave] = groups.get(octave, 0) + count
        most = max(groups.values())
        lines = []
        for octave in range(min(groups), max(groups) + 1):
            count = groups.get(octave, 0)
            edge = 2 ** (octave + 1 + _LOW) / 1000
            lines.append(f"below {edge:11,.1f} us  {count:9,d}  {'#' * round(40 * count / most)}".rstrip())
        s = self.summary()
        lines.append(
            f"{self.count:,d} durations: median {s['p50_us']:,.1f} us, 99% {s['p99_us']:,.1f} us, "
            f"99.9% {s['p99.9_us']:,.1f} us, longest {s['longest_us']:,.1f} us"
        )
        return "\n".join(lines)


def _bin(nanoseconds: int) -> int:
    """Bin 0 below 128 ns; then PARTS equal ones in each doubling; the last is open."""
    octave = nanoseconds.bit_length() - 1
    if octave < _LOW:
        return 0
    if octave >= _HIGH:
        return (_HIGH - _LOW) * PARTS + 1
    return 1 + (octave - _LOW) * PARTS + ((nanoseconds - (1 << octave)) * PARTS >> octave)


def _upper_edge(index: int) -> float:
    """Nanoseconds."""
    if index == 0:
        return float(2**_LOW)
    octave, part = divmod(index - 1, PARTS)
    return 2.0 ** (octave + _LOW) * (1 + (part + 1) / PARTS)
