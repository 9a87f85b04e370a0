
[ -z "$without_ca" ] || {
    echo "there is no CA yet: for each engine, run one of its two commands, and then this script again$without_ca" >&2
    exit 75
}
