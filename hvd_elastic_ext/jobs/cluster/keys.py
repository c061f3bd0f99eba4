"""Makes the ssh key of a job whose kind needs one: on this machine, by ``ssh-keygen``."""

from __future__ import annotations

import base64
import subprocess
import tempfile
from pathlib import Path

from hvd_elastic_ext.core.errors import Permanent, UsageError


def made(job: str) -> tuple[str, str]:
    """Return a new private key and its public key in base64; neither stays on this machine. Raises :class:`UsageError`
    without ``ssh-keygen``."""
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-key-") as folder:
        path = Path(folder) / "id"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", job, "-f", str(path)]
        try:
            ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
        except FileNotFoundError:
            raise UsageError(
                "ssh-keygen makes the key of the job, and is not installed; or give --ssh-secret"
            ) from None
        except subprocess.TimeoutExpired:
            raise Permanent("ssh-keygen takes longer than 30 s") from None
        if ended.returncode:
            raise Permanent(
                f"ssh-keygen ended with {ended.returncode}: {ended.stderr.decode('utf-8', 'replace').strip()}"
            )
        private, public = path.read_bytes(), path.with_name("id.pub").read_bytes()
    return base64.b64encode(private).decode(), base64.b64encode(public).decode()
