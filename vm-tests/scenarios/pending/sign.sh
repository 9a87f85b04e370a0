# Signs the requests by hand with OpenSSL, and moves each answer into place atomically.
set -euo pipefail
cd /srv/nodepki
mkdir -p inbox
cp outbox/apiserver.csr /root/
for csr in outbox/*.csr; do
    slot=${csr#outbox/}
    slot=${slot%.csr}
    case $slot in
        apiserver-etcd-client | etcd-*) ca=etcd_ca ;;
        front-proxy-*) ca=front_proxy_ca ;;
        *) ca=ca ;;
    esac
    openssl x509 -req -in "$csr" -copy_extensions copy -days 365 -CA "/opt/corp-ca/$ca.crt" -CAkey "/opt/corp-ca/$ca.key" \
        -out "inbox/.$slot"
    mv "inbox/.$slot" "inbox/$slot.crt"
done
