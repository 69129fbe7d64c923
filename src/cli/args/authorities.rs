//! Arguments for the cluster's certificate authorities and its recovery key.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{super::time, OutputFormat};

#[derive(Debug, Args)]
pub(crate) struct CaArgs {
    #[command(subcommand)]
    pub(crate) command: CaCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaCommand {
    /// List the authorities and the recovery key, when they expire, and how far a replacement is
    ///
    /// An authority that is not being replaced is in phase Settled. In phase Migration the cluster
    /// waits until no machine reads etcd as version 0.1.0 does, and then replaces the authority of
    /// etcd's clients by itself.
    List {
        /// Output format
        #[arg(short, long, default_value = "table")]
        output: OutputFormat,
    },
    /// Replace an authority or the recovery key while the cluster runs
    ///
    /// The leader makes a new authority and takes it into use in three phases: in Trust every
    /// machine learns to trust both authorities, in Issue the machines take certificates of the new
    /// one, and in Retire nobody trusts the old one any more.
    ///
    /// For an authority of etcd, the etcd of each machine that holds the store restarts once in
    /// Trust and once in Retire, one machine after another. A cluster with the store on one machine
    /// takes no writes for some seconds each time; instances continue to run.
    ///
    /// For cluster-ca, the authority of the machines and of the API, Trust lasts as long as --grace
    /// says, so that each katcall that is used meanwhile learns of the new authority. One that is
    /// used for the first time after that needs a new connection file; KAT_CA and all tokens for
    /// joining have to be replaced.
    ///
    /// The recovery key seals the authorities' keys on disk, backups, and the keys that seal secrets. In
    /// Trust each machine that holds the store takes the new key, in Issue it seals with it and the
    /// leader seals everything stored again, and in Retire it forgets the old key. No etcd restarts.
    /// Write the new key down afterwards; `katcall ca exposed` lists the values that could be read with
    /// the old one, and earlier tokens.
    ///
    /// For ingress-ca, KAT's own authority for ingress, Trust lasts as long as --grace says, so that
    /// people can bring browsers and other clients to trust the new authority: `katcall ca trust` prints
    /// both certificates. No client reports that it does, so the time alone ends Trust. The old one
    /// issues certificates meanwhile; the new one issues those of hosts that only its domains have. In
    /// Issue the new one issues all of them, and after that clients can forget the old one. There is no
    /// phase Retire.
    ///
    /// Backups and snapshots that were made before keep the old keys. Destroy them if the key is
    /// known to others, and make a new backup.
    Rotate(AuthorityRotationArgs),
    /// List secrets, registry credentials and tokens from before the recovery key was replaced
    ///
    /// Whoever had the earlier key and a backup or a copy of a disk may know the values of the secrets
    /// and credentials: change them where they come from, and write the new ones with `katcall secret
    /// set` and `katcall registry login`. The machine that leads sees each token that is used, and the
    /// first machine keeps one in /etc/kat/admin.conf: make another one where it is used, and revoke
    /// the listed one with `katcall token revoke`. The key of ingress-ca is in the store as well: replace
    /// it with `katcall ca rotate ingress-ca`.
    Exposed {
        /// Output format
        #[arg(short, long, default_value = "table")]
        output: OutputFormat,
    },
    /// Print the certificate of KAT's own authority for ingress, and how machines come to trust it
    ///
    /// It issues the certificates of hosts with `tls: true` in the cluster's internalDomains, and can
    /// issue none for other names: its certificate says so. The certificate is printed to standard
    /// output, so that `katcall ca trust > kat-ingress.crt` writes it to a file, and the commands to
    /// standard error. While ingress-ca is being replaced, clients have to trust two authorities, and
    /// both certificates are printed, the present one first.
    Trust {
        /// Print only the certificate of the authority that replaces the present one
        #[arg(long)]
        next: bool,
    },
    /// Stop waiting for machines that are still at version 0.1.0
    ///
    /// A machine of version 0.1.0 reads etcd with a certificate of its own, so the authority of
    /// etcd's clients is replaced once every machine reads the state stream in its place. A machine
    /// that is named here reads nothing until KAT is upgraded on it; its instances continue to run.
    Migrate {
        /// Machine that is not waited for; may be repeated
        #[arg(long, value_name = "NODE", required = true, num_args = 1.., value_delimiter = ',')]
        without: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AuthorityRotationArgs {
    /// cluster-ca, etcd-client-ca, etcd-peer-ca, ingress-ca or recovery-key
    pub(crate) name: String,
    /// For cluster-ca and ingress-ca: how long katcall may take to learn of the new authority, or people
    /// to bring clients to trust it; 0s if the old one must not be trusted any longer than necessary
    /// [default: 24h for cluster-ca, 30d for ingress-ca]
    #[arg(long, value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) grace: Option<Duration>,
    /// Wait until the new authority or key is the only one
    #[arg(long)]
    pub(crate) wait: bool,
    /// Time limit of the wait, from the end of --grace; the replacement continues after it
    #[arg(long, default_value = "10m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
}

impl CaArgs {
    /// Whether the command waits for a replacement, which continues without it.
    pub(crate) fn waits(&self) -> bool {
        matches!(&self.command, CaCommand::Rotate(arguments) if arguments.wait)
    }
}
