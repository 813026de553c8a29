"""Make a certificate that signs itself, as the people of a small installation do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def self_signed(folder: Path, name: str = "test", *more: str) -> tuple[Path, Path]:
    """Make a certificate of loopback and its key, signed by itself unless more is said."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate, *more],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
