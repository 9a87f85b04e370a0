# Installs the next version of the installed package, with other default settings.
set -euo pipefail
dpkg-deb -R /root/nodepki.deb /root/next
sed -i 's/^Version: .*/Version: 9.0-1/' /root/next/DEBIAN/control
echo '# of the next version' >>/root/next/etc/nodepki/config.yaml
rm -f /root/next/DEBIAN/md5sums
dpkg-deb -Znone --root-owner-group --build /root/next /root/next.deb
DEBIAN_FRONTEND=noninteractive dpkg --force-confdef --force-confold --install /root/next.deb
