"""Replay datasets: formats, catalogue, checks, store, samplers and corruption."""

from surefoot.data.arrays import from_arrays
from surefoot.data.catalogue import CATALOGUE, Entry, gymnasium_id, normalized_score, reference_scores
from surefoot.data.checks import validate
from surefoot.data.dataset import Dataset
from surefoot.data.download import download, fetch
from surefoot.data.load import load
from surefoot.data.pack import Packed, pack
from surefoot.data.report import Verification, info, verify
from surefoot.data.save import convert, not_held, save

__all__ = [
    "CATALOGUE",
    "Dataset",
    "Entry",
    "Packed",
    "Verification",
    "convert",
    "download",
    "fetch",
    "from_arrays",
    "gymnasium_id",
    "info",
    "load",
    "normalized_score",
    "not_held",
    "pack",
    "reference_scores",
    "save",
    "validate",
    "verify",
]
