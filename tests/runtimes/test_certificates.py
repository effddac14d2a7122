"""Certificates: what TLS itself accepts, refusals, and who may read keys."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading

import pytest
from conftest import ROOT

from privfed.foundation.errors import ConfigError
from privfed.runtimes.certificates import FILES, make_certificates


def handshake(folder, authority, host):
    """Serve one TLS connection with the certificates and connect to it as this host."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=authority / "ca.crt")
    near, far = socket.socketpair()

    def answer():
        try:
            with server.wrap_socket(far, server_side=True) as connection:
                connection.recv(1)
        except OSError:
            pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname=host) as connection:
            connection.send(b"x")
    finally:
        near.close()
        thread.join(10)


def test_tls_accepts_the_named_hosts_and_no_others(tmp_path):
    make_certificates(tmp_path, ["fed.example.org", "127.0.0.1", "::1"])
    for host in ("fed.example.org", "127.0.0.1", "::1"):
        handshake(tmp_path, tmp_path, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, tmp_path, "other.example.org")


def test_another_authority_is_refused(tmp_path):
    make_certificates(tmp_path / "ours")
    make_certificates(tmp_path / "theirs")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "ours", tmp_path / "theirs", "localhost")


def test_keys_are_the_owners_and_nothing_is_overwritten(tmp_path):
    make_certificates(tmp_path)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in FILES}
    assert modes["ca.key"] == modes["server.key"] == 0o600
    before = (tmp_path / "ca.crt").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        make_certificates(tmp_path)
    assert (tmp_path / "ca.crt").read_bytes() == before
    make_certificates(tmp_path, force=True)
    assert (tmp_path / "ca.crt").read_bytes() != before


@pytest.mark.parametrize("host", ["https://fed.example.org", "fed.example.org:9092", "", "a..b"])
def test_a_host_that_is_none_is_refused(tmp_path, host):
    with pytest.raises(ConfigError, match="host name"):
        make_certificates(tmp_path, [host])
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path):
    line = [
        sys.executable,
        "-m",
        "privfed",
        "certificates",
        str(tmp_path / "tls"),
        "fed.example.org",
    ]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "ca.crt" in done.stdout, done.stderr
    again = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 2 and again.stderr.count("\n") == 1
