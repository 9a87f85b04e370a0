
[ -z "$without_ca" ] || {
    echo "there is no CA yet in:$without_ca (run one of the two commands in the comment of each, and this script again)" >&2
    exit 75
}
