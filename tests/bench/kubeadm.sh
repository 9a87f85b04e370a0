#!/usr/bin/env bash
# Measures the real kubeadm on the work of nodepki's benchmark, as a table in Markdown.
#
#   tests/bench/kubeadm.sh [RUNS]       default 9 runs; the first of each series is dropped
#
# "init" is `init phase certs all` followed by `init phase kubeconfig all` over existing CA pairs: 7 leaves, the
# service-account pair and 5 kubeconfigs, 13 keys. Medians with minimum and maximum; CPU is user + system.
# Needs kubeadm from tests/servers/build, root, and an idle machine: the load is printed for that reason.
set -euo pipefail

runs=${1:-9}
kubeadm=${NODEPKI_TEST_KUBEADM:-${XDG_CACHE_HOME:-$HOME/.cache}/nodepki-tests/bin/kubeadm}
[[ -x $kubeadm ]] || { echo "tests/bench/kubeadm.sh: no $kubeadm: tests/servers/build kubeadm" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# No network, so that no lookup is measured.
unshare --net -- python3 - "$kubeadm" "$work" "$runs" <<'PYTHON'
import os, resource, shutil, statistics, subprocess, sys, time

kubeadm, work, runs = os.path.realpath(sys.argv[1]), sys.argv[2], int(sys.argv[3])
config, pki = work + "/config.yaml", work + "/pki"


def measure(arguments):
    """Wall and CPU seconds and peak RSS in MiB of one command."""
    start = time.perf_counter()
    child = subprocess.Popen([kubeadm, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, said.decode()
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def certs():
    return measure(["init", "phase", "certs", "all", "--config", config])


def kubeconfig():
    return measure(["init", "phase", "kubeconfig", "all", "--config", config, "--kubeconfig-dir", work])


def leave_only_authorities():
    keep = {"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key"}
    for folder, _, files in os.walk(work):
        for name in files:
            if name.endswith((".crt", ".key", ".pub", ".conf")) and name not in keep:
                os.remove(os.path.join(folder, name))


def row(what, algorithm, series):
    wall, cpu, rss = zip(*series[1:])
    text = lambda values: f"{statistics.median(values):.3f} [{min(values):.3f}..{max(values):.3f}]"
    print(f"| {what} | {algorithm} | {text(wall)} | {text(cpu)} | {max(rss):.0f} |", flush=True)


version = subprocess.run([kubeadm, "version", "-o", "short"], capture_output=True, text=True).stdout.strip()
print(f"kubeadm {version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {runs - 1} runs\n")
print("| work | algorithm | wall s | CPU s | peak RSS MiB |\n| --- | --- | --- | --- | --- |")
for algorithm in ["RSA-2048", "RSA-4096", "ECDSA-P256"]:
    shutil.rmtree(pki, ignore_errors=True)
    with open(config, "w") as file:
        file.write(f"""apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: 192.0.2.11}}
nodeRegistration: {{name: cp1}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {version}
encryptionAlgorithm: {algorithm}
certificatesDir: {pki}
""")
    certs()
    series = {"certs": [], "kubeconfig": [], "both": []}
    for _ in range(runs):
        leave_only_authorities()
        first, second = certs(), kubeconfig()
        series["certs"].append(first)
        series["kubeconfig"].append(second)
        series["both"].append((first[0] + second[0], first[1] + second[1], max(first[2], second[2])))
    row("init phase certs all", algorithm, series["certs"])
    row("init phase kubeconfig all", algorithm, series["kubeconfig"])
    row("init, both", algorithm, series["both"])
    row("certs check-expiration", algorithm, [measure(["certs", "check-expiration", "--config", config]) for _ in range(runs)])
row("version (start-up alone)", "-", [measure(["version"]) for _ in range(runs)])
PYTHON
