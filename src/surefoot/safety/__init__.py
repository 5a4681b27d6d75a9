"""Certificates, safe sets and filters of policies."""
