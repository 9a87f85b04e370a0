#!/usr/bin/env bash
# Three programs that keep twelve certificates valid, side by side while nothing is due: nodepki's daemon, certmonger, and
# the agent of OpenBao with templates. Prints a table in Markdown.
#
#   tests/bench/idle.sh PROGRAM [SECONDS]       nodepki's program; 60 s of observation
#
# The keys are ECDSA P-256. nodepki and certmonger use a CA on this machine, the agent a PKI engine of an OpenBao server
# that is not counted. Needs root, certmonger, and OpenBao from tests/servers/build.
set -euo pipefail

program=$(realpath "$1") seconds=${2:-60}
bao=${NODEPKI_TEST_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/nodepki-tests/bin}/bao
names=(apiserver apiserver-kubelet-client apiserver-etcd-client front-proxy-client etcd-server etcd-peer
    etcd-healthcheck-client admin super-admin kubelet controller-manager scheduler)

main() {
    [[ -x $bao ]] || fail "no $bao: tests/servers/build bao"
    work=$(mktemp -d) processes=()
    trap 'kill "${processes[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
    start_nodepki
    start_certmonger
    start_agent
    # Time to become idle.
    sleep 10
    declare -A before
    local name
    for name in nodepki certmonger agent; do
        before[$name]=$(usage "${!name}")
    done
    sleep "$seconds"
    echo "| idle, ${#names[@]} certificates | resident MiB | of which anonymous | CPU in $seconds s | wake-ups in $seconds s |"
    echo "| --- | --- | --- | --- | --- |"
    row "nodepki daemon" "$nodepki" "${before[nodepki]}"
    row "certmonger $(certmonger -v | grep -o '[0-9][0-9.]*' | head -n 1)" "$certmonger" "${before[certmonger]}"
    row "agent of OpenBao" "$agent" "${before[agent]}"
}

start_nodepki() {
    local authority
    mkdir -p "$work"/{root/etc/kubernetes/pki,authorities/etcd}
    for authority in ca:kubernetes etcd/ca:etcd-ca front-proxy-ca:front-proxy-ca; do
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=${authority#*:}" \
            -addext keyUsage=critical,digitalSignature,keyCertSign -keyout "$work/authorities/${authority%:*}.key" \
            -out "$work/authorities/${authority%:*}.crt" 2>/dev/null
    done
    chmod 600 "$work"/authorities/{,etcd/}*.key
    cat >"$work/kubeadm.yaml" <<'KUBEADM'
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.11}
nodeRegistration: {name: cp1}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.2
encryptionAlgorithm: ECDSA-P256
KUBEADM
    local options=(--signer "local:$work/authorities" --kubeadm-config "$work/kubeadm.yaml")
    "$program" --root "$work/root" bootstrap "${options[@]}" >"$work/bootstrap.log" 2>&1 || fail "$(<"$work/bootstrap.log")"
    "$program" --root "$work/root" daemon "${options[@]}" >"$work/nodepki.log" 2>&1 &
    nodepki=$! processes+=($!)
    expect "${#names[@]}" "$work/root/etc/kubernetes" -name '*.crt' ! -name '*ca.crt' -o -name '*.conf'
}

# With a state directory and a socket of its own.
start_certmonger() {
    mkdir -p "$work/certmonger" "$work/state"/{requests,cas,local}
    unshare --mount bash -euc 'mount --bind "$0/state" /var/lib/certmonger; exec certmonger -L -P "$0/socket" -n' "$work" \
        >"$work/certmonger.log" 2>&1 &
    certmonger=$! processes+=($!)
    until [[ -S $work/socket ]]; do sleep 0.1; done
    local name
    for name in "${names[@]}"; do
        CERTMONGER_PVT_ADDRESS=unix:path=$work/socket getcert request -w -c local -G EC -g 256 -N "CN=$name" \
            -k "$work/certmonger/$name.key" -f "$work/certmonger/$name.crt" >>"$work/getcert.log"
    done
    expect "${#names[@]}" "$work/certmonger" -name '*.crt'
}

start_agent() {
    export BAO_ADDR=http://127.0.0.1:18200 BAO_TOKEN=root HOME=$work
    "$bao" server -dev -dev-no-store-token -dev-root-token-id=root -dev-listen-address=127.0.0.1:18200 >"$work/bao.log" 2>&1 &
    processes+=($!)
    until "$bao" status >/dev/null 2>&1; do sleep 0.1; done
    {
        "$bao" secrets enable pki
        "$bao" write pki/root/generate/internal common_name=ca key_type=ec key_bits=256
        "$bao" write pki/roles/any allow_any_name=true enforce_hostnames=false key_type=ec key_bits=256
    } >"$work/setup.log" 2>&1
    mkdir "$work/agent"
    printf %s root >"$work/token"
    {
        echo "vault { address = \"$BAO_ADDR\" }"
        echo "auto_auth { method \"token_file\" { config = { token_file_path = \"$work/token\" } } }"
        local name
        for name in "${names[@]}"; do
            echo "template { destination = \"$work/agent/$name.pem\""
            echo "contents = \"{{ with pkiCert \\\"pki/issue/any\\\" \\\"common_name=$name\\\" \\\"ttl=24h\\\" }}{{ .Cert }}{{ .Key }}{{ end }}\" }"
        done
    } >"$work/agent.hcl"
    "$bao" agent -config="$work/agent.hcl" >"$work/agent.log" 2>&1 &
    agent=$! processes+=($!)
    expect "${#names[@]}" "$work/agent" -name '*.pem'
}

# Waits until find(1) finds this number of files.
expect() {
    local _ found
    for _ in {1..300}; do
        found=$(find "${@:2}" | wc -l)
        ((found < $1)) || return 0
        sleep 0.1
    done
    tail -n 5 "$work"/*.log >&2
    fail "$found instead of $1 certificates in $2"
}

# Prints ticks of CPU and the number of context switches of all threads of a process.
usage() {
    local ticks
    ticks=$(awk '{print $14 + $15}' "/proc/$1/stat")
    echo "$ticks $(cat "/proc/$1"/task/*/status | awk '/^voluntary_ctxt_switches/ {sum += $2} END {print sum}')"
}

row() {
    local before after status
    status=$(<"/proc/$2/status") || fail "$1 has ended"
    read -ra before <<<"$3"
    read -ra after <<<"$(usage "$2")"
    awk -v name="$1" -v cpu=$((after[0] - before[0])) -v hertz="$(getconf CLK_TCK)" -v wakes=$((after[1] - before[1])) '
        /^VmRSS/ {all = $2 / 1024} /^RssAnon/ {anonymous = $2 / 1024}
        END {printf "| %s | %.1f | %.1f | %.2f s | %d |\n", name, all, anonymous, cpu / hertz, wakes}' <<<"$status"
}

fail() {
    echo "tests/bench/idle.sh: $*" >&2
    exit 1
}

main
