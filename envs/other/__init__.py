"""Environments that live in another python: `other:PYTHON:MODULE:ID` (docs/other_python.md)."""
