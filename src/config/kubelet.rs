//! The block `kubelet`: which of the kubelet's certificates nodepki issues, and where they are written.

use crate::spec::KubeletLayout;
use crate::yaml::settings::{choice_setting, settings};

settings! {
    /// Certificates of the kubelet.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct KubeletSettings {
        /// How the kubelet gets its client certificate: `issue`, signed through nodepki, or `bootstrap`, through the
        /// cluster's TLS bootstrap.
        "identity" => pub identity: KubeletIdentity;
        /// Where the client certificate is written: `file`, in the kubelet's directory, or `auto`, in kubelet.conf until
        /// the kubelet keeps it as a file.
        "clientCertificate" => pub client_certificate: KubeletLayout;
        /// Issue the kubelet's serving certificate as well.
        "serving" => pub serving: bool;
    }
}

words! {
    /// How the kubelet gets its client certificate.
    #[derive(Default)]
    pub enum KubeletIdentity {
        /// Issued by nodepki, in kubelet.conf: for clusters in which no signer serves the kubelet's own request.
        #[default]
        Issue = "issue",
        /// Requested by the kubelet through TLS bootstrap; nothing is written on a joining node. The first node gets it
        /// from nodepki.
        Bootstrap = "bootstrap",
    }
}

choice_setting!(KubeletIdentity, KubeletLayout);
