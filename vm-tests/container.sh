#!/usr/bin/env bash
# Starts a container; `container.rs` calls it in a new mount namespace:
#
#   container.sh DIR LOWER CGROUP... -- OPTION...
#
# DIR is the container's folder, described there. LOWER is the system: the lower directories of an overlay. Each CGROUP
# is a new cgroup of the container: containers in one cgroup would end each other's services. The options are for
# systemd-nspawn.
set -euo pipefail
dir=$1 lower=$2
shift 2
while [[ $1 != -- ]]; do
    echo $$ >"$1/cgroup.procs"
    shift
done
shift
if [[ -e $dir/disk.ext4 ]]; then
    mount -o loop "$dir/disk.ext4" "$dir/disk"
    mkdir -p "$dir/disk/upper" "$dir/disk/work"
fi
# A container that has just been killed may use the directories for a moment longer.
for _ in {1..100}; do
    if mount -t overlay -o "lowerdir=$lower,upperdir=$dir/disk/upper,workdir=$dir/disk/work" overlay "$dir/root"; then
        mounted=yes
        break
    fi
    sleep 0.05
done
[[ -n ${mounted:-} ]]
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
# The network exists before the container starts, and systemd-networkd would wait for a network that it configures.
exec systemd-nspawn --quiet --register=no --keep-unit --boot --console=read-only --link-journal=no \
    --machine="${dir##*/}" --directory="$dir/root" \
    --bind-ro="$dir/seed:/var/lib/cloud/seed/nocloud" --bind="$dir/shared:/run/tests" "$@" \
    systemd.mask=systemd-networkd-wait-online.service
