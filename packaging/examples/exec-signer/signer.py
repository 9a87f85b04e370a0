#!/usr/bin/python3
"""A signer for nodepki that waits for a person, as a start for your own.

Speaks signer.nodepki.dev/v1 (docs/signers/exec.md). Needs nothing but Python.

    signer.py DIRECTORY VERB

`sign` puts the request into DIRECTORY/queue and answers `pending`; `poll` answers with the certificate as soon as
DIRECTORY/signed has it. Replace both by calls to your CA. DIRECTORY has the CA certificates as kubeadm names them:
ca.crt, front-proxy-ca.crt, etcd/ca.crt.
"""

import json
import os
import pathlib
import re
import sys

API = "signer.nodepki.dev/v1"
AUTHORITIES = {"ca": "ca.crt", "etcd-ca": "etcd/ca.crt", "front-proxy-ca": "front-proxy-ca.crt"}


def respond(request, result, **fields):
    return {
        "apiVersion": API,
        "kind": "SignResponse",
        "requestId": request["requestId"],
        "result": result,
        **fields,
    }


def write(path, text):
    """Writes a file in one step: a parallel call sees the whole file or none."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text)
    part.rename(path)


def sign(directory, request):
    if not re.fullmatch(r"[0-9a-f]+", request["requestId"]):
        raise ValueError("not a request ID")
    # The same request has the same file, so that nothing is queued twice.
    csr = directory / "queue" / f"{request['requestId']}.csr"
    if not csr.exists():
        write(csr.with_suffix(".json"), json.dumps(request, indent=2))
        write(csr, request["csrPem"])
    return poll(directory, request | {"handle": request["requestId"]})


def poll(directory, request):
    # A handle comes back as it was given. It must never become a path without this check.
    handle = request["handle"]
    if not re.fullmatch(r"[0-9a-f]+", handle):
        return respond(request, "gone")
    signed = directory / "signed" / f"{handle}.crt"
    if signed.exists():
        return respond(request, "issued", certificatePem=signed.read_text())
    if not (directory / "queue" / f"{handle}.csr").exists():
        return respond(request, "gone")
    return respond(request, "pending", handle=handle, message=f"waits for {signed}")


def main():
    directory, verb = pathlib.Path(sys.argv[1]), sys.argv[2]
    request = json.load(sys.stdin)
    if verb == "info":
        answer = {"kind": "InfoResponse", "apiVersions": [API], "capabilities": {"resubmit": "idempotent"}}
    elif verb == "trust":
        ca = (directory / AUTHORITIES[request["ca"]]).read_text()
        answer = {"apiVersion": API, "kind": "TrustResponse", "caPem": ca}
    elif verb == "sign":
        answer = sign(directory, request)
    elif verb == "poll":
        answer = poll(directory, request)
    else:
        sys.exit(f"unknown verb: {verb}")
    json.dump(answer, sys.stdout)


main()
