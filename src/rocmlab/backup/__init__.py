"""Backups of a lab's share, notebooks and settings.

A backup is a folder: `files-0001.tar`, `files-0002.tar` and so on (plain tar), `manifest.jsonl` (every file with its
SHA-256) and `SHA256SUMS` (which `sha256sum -c` reads). Only a complete backup has the last one. This package runs on
the host for a native lab, and in a container of the lab's image where the files are in a volume.
"""
