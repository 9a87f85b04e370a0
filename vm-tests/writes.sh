#!/usr/bin/env bash
# The part of `writes.rs` that needs mounted disks, in a new mount namespace, so that every mount ends with it:
#
#   writes.sh record DIR NODEPKI    bootstraps and renews a node on a disk whose writes and flushes are recorded:
#                                   `empty` is the disk before, `log` the record in the format of dm-log-writes; before,
#                                   between and after the two steps, `mark-N` is the head of the log and `sums-N` the files
#   writes.sh resume DIR NODEPKI    runs nodepki again on the disk `cut`, and writes its files' sums to `sums`
#   writes.sh judge DIR NODEPKI     as resume, with verification by OpenSSL
set -euo pipefail
[[ ${1:-} == --inside ]] || exec setpriv --pdeathsig KILL unshare --mount bash "${BASH_SOURCE[0]}" --inside "$@"
verb=$2 dir=$3 nodepki=$4
kubelet=$(dirname "${BASH_SOURCE[0]}")/image/kubelet
node=$dir/node
mkdir -p "$node"

record() {
    truncate -s 48M "$dir/empty"
    mke2fs -q -t ext4 "$dir/empty"
    cp --sparse=always "$dir/empty" "$dir/disk"
    : >"$dir/log"
    : >"$dir/export"
    setpriv --pdeathsig KILL qemu-storage-daemon \
        --blockdev "driver=file,node-name=disk,filename=$dir/disk" \
        --blockdev "driver=file,node-name=log,filename=$dir/log" \
        --blockdev driver=blklogwrites,node-name=both,file=disk,log=log,log-append=off,log-super-update-interval=1 \
        --export "type=fuse,id=export,node-name=both,mountpoint=$dir/export,writable=on" &
    local exporter=$!
    for _ in {1..200}; do
        [[ ! -s $dir/export ]] || break
        sleep 0.05
    done
    mount -o loop "$dir/export" "$node"

    install -D -m 600 "$dir/kubeadm.yaml" "$node/etc/nodepki/kubeadm.yaml"
    echo cp1 >"$node/etc/hostname"
    mkdir -p "$node/etc/kubernetes/pki/etcd"
    cp "$dir"/ca/*.crt "$node/etc/kubernetes/pki/"
    cp "$dir"/ca/etcd/*.crt "$node/etc/kubernetes/pki/etcd/"
    mark 0
    run bootstrap
    mark 1
    # Without the record, recently issued certificates have no cool-down.
    rm "$node/var/lib/nodepki/issued.json"
    run renew --all
    mark 2
    umount "$node"
    kill "$exporter"
    wait "$exporter" || true
}

mark() {
    sync -f "$node"
    head -c 4096 "$dir/log" >"$dir/mark-$1"
    sums >"$dir/sums-$1"
}

resume() {
    mount -o loop "$dir/cut" "$node"
    run bootstrap
    sums >"$dir/sums"
    umount "$node"
}

judge() {
    mount -o loop "$dir/cut" "$node"
    run bootstrap
    bash "$kubelet" "$node/etc/kubernetes" >/dev/null
    sums >"$dir/sums"
    umount "$node"
}

run() {
    "$nodepki" --root "$node" "$@" --kubeadm-config /etc/nodepki/kubeadm.yaml --signer "local:$dir/ca" >"$dir/said" 2>&1 ||
        { status=$?; cat "$dir/said" >&2; return "$status"; }
}
sums() { (cd "$node/etc/kubernetes" && find . -type f -exec sha256sum {} + | sort -k 2); }

"$verb"
