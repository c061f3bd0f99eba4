"""Certificates for tests, made by the command ``openssl``."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key, both PEM."""

    certificate: Path
    key: Path


class Authority:
    """A CA in ``folder``, which must exist."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
        _openssl(
            "req", "-x509", *_new_key(self._pair), "-days", "2", "-subj", f"/CN=kubernetes-{name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
        )  # fmt: skip
        self._issued = 0

    @property
    def certificate(self) -> Path:
        return self._pair.certificate

    def server(self, *names: str) -> Pair:
        """Return a server's certificate for these IP addresses and host names."""
        alternative = ",".join(f"{'IP' if each.replace('.', '').isdigit() else 'DNS'}:{each}" for each in names)
        return self._issue("/CN=kube-apiserver", f"subjectAltName={alternative}\nextendedKeyUsage=serverAuth\n")

    def client(self, user: str, *groups: str) -> Pair:
        """Return a client's certificate, which has its user and groups."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        return self._issue(subject, "extendedKeyUsage=clientAuth\n")

    def context(self, server: Pair) -> ssl.SSLContext:
        """Return the context of a server. It accepts clients with a certificate of this CA, and without one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.key)
        context.load_verify_locations(self.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _issue(self, subject: str, extensions: str) -> Pair:
        self._issued += 1
        stem = f"{self._pair.certificate.stem}-{self._issued}"
        pair = Pair(self._folder / f"{stem}.crt", self._folder / f"{stem}.key")
        request, wanted = self._folder / f"{stem}.csr", self._folder / f"{stem}.ext"
        wanted.write_text(
            "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
            f"subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n{extensions}"
        )
        _openssl("req", *_new_key(Pair(request, pair.key)), "-subj", subject)
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self._pair.certificate), "-CAkey", str(self._pair.key),
            "-CAcreateserial", "-days", "2", "-extfile", str(wanted), "-out", str(pair.certificate),
        )  # fmt: skip
        return pair


def _new_key(pair: Pair) -> list[str]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    return [*curve, "-keyout", str(pair.key), "-out", str(pair.certificate)]


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]}: {done.stderr.strip()}")
