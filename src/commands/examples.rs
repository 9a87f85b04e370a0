//! Examples of every command, for `--help` and the manual pages. A test parses each of them.

/// The examples of one command.
pub(super) struct CommandExamples {
    /// The command without `nodepki`, as in `csr export`.
    pub(super) command: &'static str,
    /// Command lines as an administrator types them, and their meaning.
    pub(super) lines: &'static [(&'static str, &'static str)],
}

const fn examples(
    command: &'static str,
    lines: &'static [(&'static str, &'static str)],
) -> CommandExamples {
    CommandExamples { command, lines }
}

/// Returns the examples of a command.
pub(super) fn of(command: &str) -> Option<&'static CommandExamples> {
    EXAMPLES.iter().find(|examples| examples.command == command)
}

#[rustfmt::skip]
pub(super) const EXAMPLES: &[CommandExamples] = &[
    examples("plan", &[
        ("nodepki plan", "Shows what bootstrap would do on this node."),
        ("nodepki plan --kubeadm-config kubeadm.yaml --signer embedded", "The same for a kubeadm configuration, without settings."),
        ("nodepki plan -o json", "Prints the plan for a program."),
    ]),
    examples("bootstrap", &[
        ("nodepki bootstrap", "Creates what is missing, with the settings in /etc/nodepki."),
        ("nodepki bootstrap --wait 10m", "Waits up to ten minutes for a signer that is not reachable or has not decided yet."),
        ("nodepki bootstrap --kubeadm-config kubeadm.yaml --signer local:/root/ca", "Has the certificates signed with the CA keys in a directory, for a laboratory."),
    ]),
    examples("status", &[
        ("nodepki status", "Shows all certificates with their expiry."),
        ("nodepki status apiserver", "Shows one certificate in full."),
        ("nodepki status -o tree", "Shows them below the authorities that signed them."),
        ("nodepki status --root /mnt -o json", "Prints the files of the system that is mounted at /mnt, for a program."),
    ]),
    examples("renew", &[
        ("nodepki renew", "Renews what is due or has drifted."),
        ("nodepki renew --all --dry-run", "Shows what a renewal of all certificates would do."),
        ("nodepki renew apiserver admin.conf", "Renews these certificates now, due or not."),
        ("nodepki renew --force etcd-peer", "Renews with a new key, although it was renewed within the last hour."),
    ]),
    examples("doctor", &[
        ("nodepki doctor", "Checks the files of this node."),
        ("nodepki doctor --online", "Also checks every signer."),
        ("nodepki doctor --kubeconfig /etc/kubernetes/admin.conf", "Also checks the role bindings of the cluster."),
        ("nodepki doctor --list", "Lists the checks."),
    ]),
    examples("init", &[
        ("nodepki init vault --server https://vault.example.com:8200", "Writes settings for Vault or OpenBao."),
        ("nodepki init est --list", "Lists the values that settings for EST need."),
        ("nodepki init directory --set path=/srv/pki --no-input", "Writes settings without asking."),
    ]),
    examples("preflight", &[
        ("nodepki preflight", "Checks everything that bootstrap needs."),
        ("nodepki preflight --wait 90s", "Allows a signer this much time to become available."),
        ("nodepki preflight -o json", "Prints the checks for a program."),
    ]),
    examples("needs-renewal", &[
        ("nodepki needs-renewal", "Ends with 0 if a certificate is due."),
        ("nodepki needs-renewal apiserver", "Asks about one certificate only."),
    ]),
    examples("daemon", &[
        ("nodepki daemon", "Keeps the certificates valid until it is stopped."),
        ("nodepki daemon -v --log json", "Logs JSON with more details."),
    ]),
    examples("policy check", &[
        ("nodepki policy check", "Compares every key of this node with the policy."),
        ("nodepki policy check -o json", "Prints the comparison for a program."),
    ]),
    examples("policy crd", &[
        ("nodepki policy crd", "Prints the definition of the resource PKI for kubectl apply -f -."),
    ]),
    examples("policy export", &[
        ("nodepki policy export", "Prints the rules of this node as the object pkis.config.openshift.io/cluster."),
    ]),
    examples("audit verify", &[
        ("nodepki audit verify", "Verifies the chain of the issuance log."),
        ("nodepki audit verify --head 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", "Verifies that the log still has the entry with this digest, from the journal."),
    ]),
    examples("audit show", &[
        ("nodepki audit show --certificate apiserver", "Prints the requests and certificates of the API server."),
        ("nodepki audit show --serial 3a1f -o json", "Prints what led to the certificate with this serial number."),
    ]),
    examples("crl", &[
        ("nodepki crl", "Fetches and installs the revocation lists of all signers."),
        ("nodepki crl --wait 2m", "Waits up to two minutes for a signer that is not reachable."),
    ]),
    examples("csr export", &[
        ("nodepki csr export /root/requests", "Writes the requests of this node."),
        ("nodepki csr export --kubeadm-config kubeadm.yaml /root/requests", "The same for a kubeadm configuration at another path."),
    ]),
    examples("csr show", &[
        ("nodepki csr show apiserver", "Shows a request that waits for its signer."),
        ("nodepki csr show apiserver -o json", "Prints what the program of an exec signer reads."),
    ]),
    examples("csr import", &[
        ("nodepki csr import /root/requests", "Installs the certificates that were stored next to the requests."),
        ("nodepki csr import --root /mnt /root/requests", "Installs them in the system that is mounted at /mnt."),
    ]),
    examples("migrate to-external", &[
        ("nodepki migrate to-external", "Reports whether the node still needs its CA keys."),
        ("nodepki migrate to-external --apply --backup /mnt/usb/ca-keys.pem --passphrase-file /root/passphrase", "Encrypts the CA keys into a file and removes them."),
    ]),
    examples("migrate to-internal", &[
        ("nodepki migrate to-internal --backup /mnt/usb/ca-keys.pem --passphrase-file /root/passphrase", "Checks that the backup belongs to this node."),
        ("nodepki migrate to-internal --apply --backup /mnt/usb/ca-keys.pem --passphrase-file /root/passphrase", "Restores the CA keys."),
    ]),
    examples("authority rotate", &[
        ("nodepki authority rotate etcd-ca --certificate /root/new-etcd-ca.crt", "Changes the CA on all nodes of the cluster."),
        ("nodepki authority rotate ca --certificate /root/new-ca.crt --hold-before activate", "Waits after all nodes trust the new CA, so that Pods can be restarted."),
        ("nodepki authority rotate ca --exclude worker-7", "Continues a rotation that waits for a node that is gone."),
    ]),
    examples("authority pause", &[
        ("nodepki authority pause ca", "Begins no further phase, and no further step on any node."),
    ]),
    examples("authority resume", &[
        ("nodepki authority resume ca", "Continues, also before the phase that is held."),
    ]),
    examples("authority undo", &[
        ("nodepki authority undo ca", "Returns to the old CA on all nodes."),
    ]),
    examples("authority watch", &[
        ("nodepki authority watch", "Shows all nodes until every rotation has ended."),
        ("nodepki authority watch ca --once -o json", "Prints the present state."),
    ]),
    examples("authority stage", &[
        ("nodepki authority stage ca --certificate /root/new-ca.crt", "Trusts a new CA in addition, on this node."),
        ("nodepki authority stage etcd-ca --dry-run", "Shows the step for the CA of the signer."),
        ("nodepki authority stage ca --undo", "Removes the new CA again."),
    ]),
    examples("authority activate", &[
        ("nodepki authority activate ca --dry-run", "Shows what is missing before the new CA can issue."),
        ("nodepki authority activate ca --peer-report cp2.json --peer-report cp3.json", "Activates it with the reports of the other nodes."),
    ]),
    examples("authority retire", &[
        ("nodepki authority retire ca", "Stops trusting the old CA."),
        ("nodepki authority retire ca --all-nodes-activated", "The same, if the nodes cannot be listed."),
    ]),
    examples("authority status", &[
        ("nodepki authority status", "Shows the changes of all authorities."),
        ("nodepki authority status ca -o json", "Prints the report for the other nodes."),
    ]),
    examples("certs key", &[
        ("nodepki certs key", "Prints a new certificate key."),
        ("nodepki certs key --out /root/certificate-key", "Writes it to a file of mode 0600."),
    ]),
    examples("certs upload", &[
        ("nodepki certs upload --certificate-key-file /root/certificate-key", "Shares the files of this node under this key."),
        ("nodepki certs upload --without-ca-keys", "Leaves out the CA keys, and prints a new key."),
        ("nodepki certs upload --ttl 24h", "Keeps the Secret for a day instead of two hours."),
    ]),
    examples("certs expire", &[
        ("nodepki certs expire", "Removes the shared certificates from the cluster now."),
        ("nodepki certs expire --if-expired", "Removes them if their time is over, as a timer does."),
    ]),
    examples("certs download", &[
        ("nodepki certs download --certificate-key-file /root/certificate-key", "Installs the shared files on a joining node."),
        ("nodepki certs download --certificate-key-file /root/certificate-key --kubeconfig /root/admin.conf", "Reads them with this kubeconfig."),
    ]),
    examples("cluster status", &[
        ("nodepki cluster status", "Shows the certificates of all nodes."),
        ("nodepki cluster status --kubeconfig /root/admin.conf -o prometheus", "Prints their times as metrics."),
    ]),
    examples("kubelets list", &[
        ("nodepki kubelets list", "Lists the requests of kubelets."),
        ("nodepki kubelets list --kubeconfig /root/admin.conf -o json", "Prints them for a program."),
    ]),
    examples("kubelets approve", &[
        ("nodepki kubelets approve csr-x7k2p", "Approves a request."),
    ]),
    examples("kubelets revoke", &[
        ("nodepki kubelets revoke worker-7", "Ends the signing for a node."),
        ("nodepki kubelets revoke worker-7 --undo", "Allows it again."),
    ]),
    examples("kubelets deny", &[
        ("nodepki kubelets deny csr-x7k2p", "Denies a request."),
        ("nodepki kubelets deny csr-x7k2p --reason 'the machine was retired'", "Tells the requester why."),
    ]),
    examples("config check", &[
        ("nodepki config check", "Checks the settings and the kubeadm configuration of this node."),
        ("nodepki config check --strict --config config.yaml --kubeadm-config kubeadm.yaml", "Checks files in a pipeline; a warning is an error."),
    ]),
    examples("config show", &[
        ("nodepki config show", "Prints the effective settings without secrets."),
        ("nodepki config show --config config.yaml -o json", "Prints those of a file as JSON."),
    ]),
    examples("config schema", &[
        ("nodepki config schema", "Prints the JSON Schema, for an editor."),
    ]),
    examples("config signer-setup", &[
        ("nodepki config signer-setup vault", "Prints the commands for the administrator of Vault."),
        ("nodepki config signer-setup kubelets", "Prints the rights that nodepki needs to sign for kubelets."),
    ]),
    examples("capi secrets", &[
        ("nodepki capi secrets prod --endpoint api.example.com:6443 --out prod.yaml", "Writes the Secrets of a cluster to a file."),
        ("nodepki capi secrets prod --rights", "Prints a ServiceAccount with the rights of the next command."),
        ("nodepki capi secrets prod --endpoint api.example.com:6443 --apply --kubeconfig management.conf", "Creates them in the management cluster."),
    ]),
    examples("capi check", &[
        ("nodepki capi check prod --kubeconfig management.conf", "Checks the Secrets in the management cluster."),
        ("nodepki capi check prod --from-file prod.yaml", "Checks a manifest."),
        ("nodepki capi check prod --crd", "Prints the definition of ControlPlanePKI, for kubectl apply."),
        ("nodepki capi check prod --write --watch --rights", "Prints a ServiceAccount with the rights of the next command."),
        ("nodepki capi check prod --write --watch --kubeconfig management.conf", "Stores the conditions after every change, until SIGTERM."),
    ]),
    examples("capi sync", &[
        ("nodepki capi sync prod --rights", "Prints a ServiceAccount with the necessary rights, for kubectl apply."),
        ("nodepki capi sync prod --kubeconfig management.conf", "Corrects the expiry annotation of each control-plane Machine."),
    ]),
    examples("capi migrate to-external", &[
        ("nodepki capi migrate to-external prod --kubeconfig management.conf", "Reports whether the management cluster still needs the CA keys."),
        ("nodepki capi migrate to-external prod --kubeconfig management.conf --apply --backup /mnt/usb/ca-keys --passphrase-file passphrase", "Backs the keys up and removes them from the Secrets."),
    ]),
    examples("capi migrate to-internal", &[
        ("nodepki capi migrate to-internal prod --kubeconfig management.conf --apply --backup /mnt/usb/ca-keys --passphrase-file passphrase", "Restores the keys from the backup."),
    ]),
    examples("demo", &[
        ("nodepki demo /tmp/node", "Creates all files of a node below this directory."),
        ("nodepki demo --kubeadm-config kubeadm.yaml /tmp/node", "The same for this kubeadm configuration."),
    ]),
    examples("completions", &[
        ("nodepki completions bash", "Prints the completions for bash; source them to use them."),
    ]),
    examples("man", &[
        ("nodepki man", "Prints the manual page of nodepki."),
        ("nodepki man /usr/share/man/man1", "Writes a page for each command."),
    ]),
];

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::commands::Cli;

    /// Splits a line as a shell does; the examples contain no other quotation marks.
    fn words(line: &str) -> Vec<String> {
        let mut words = Vec::new();
        for (at, part) in line.split('\'').enumerate() {
            match at % 2 {
                0 => words.extend(part.split_whitespace().map(str::to_owned)),
                _ => words.push(part.to_owned()),
            }
        }
        words
    }

    #[test]
    fn every_example_is_a_valid_command_line() {
        for examples in EXAMPLES {
            for (line, meaning) in examples.lines {
                let start = format!("nodepki {}", examples.command);
                assert!(line.starts_with(&start), "{line}");
                assert!(meaning.ends_with('.'), "{meaning}");
                let parsed = Cli::try_parse_from(words(line));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn refuses_examples_with_a_mistake() {
        for line in [
            "nodepki renew --all apiserver",
            "nodepki csr export",
            "nodepki authority stage cb",
        ] {
            assert!(Cli::try_parse_from(words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn every_command_has_examples() {
        fn leaves(command: &clap::Command, path: &str, found: &mut Vec<String>) {
            let path = format!("{path} {}", command.get_name());
            if command.get_subcommands().next().is_none() {
                found.push(path.trim_start_matches(" nodepki ").to_owned());
            }
            for subcommand in command.get_subcommands() {
                leaves(subcommand, &path, found);
            }
        }
        let mut found = Vec::new();
        leaves(&Cli::command(), "", &mut found);
        let missing: Vec<_> = found.iter().filter(|name| of(name).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        for examples in EXAMPLES {
            assert!(
                found.contains(&examples.command.to_owned()),
                "{}",
                examples.command
            );
        }
    }
}
