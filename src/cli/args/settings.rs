//! Arguments for tokens, the configuration, and contexts.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{super::time, DocumentFormat, OutputFormat, TokenFormat};
use crate::commands::cluster::token;

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token; its secret is printed once
    Create {
        /// admin, read, or deploy:NAMESPACE
        #[arg(
            long,
            value_parser = token::parse_scope,
            required_unless_present = "join",
            conflicts_with = "join"
        )]
        scope: Option<kat_types::api::Scope>,
        /// For a machine that joins: prints the command to paste there
        #[arg(long)]
        join: bool,
        /// With --join: how many machines may join with it [default: 1]
        #[arg(long, value_name = "N", requires = "join", value_parser = clap::value_parser!(u32).range(1..))]
        uses: Option<u32>,
        /// With --join: any machine that reaches the API may join, without the token's secret
        #[arg(long, requires = "join", conflicts_with = "scope")]
        insecure_trust_network: bool,
        /// A name for people
        #[arg(long, default_value = "")]
        name: String,
        /// How long it lives, such as 12h or 30d; without it 90 days, 1h with --join, and for good with --scope admin
        #[arg(long, value_name = "TIME", value_parser = time::parse_duration)]
        ttl: Option<Duration>,
        /// Print the whole answer, or with `connection` a connection file that has the token
        #[arg(short, long)]
        output: Option<TokenFormat>,
    },
    /// List tokens, without their secrets
    List {
        /// How to print
        #[arg(short, long, default_value = "table")]
        output: OutputFormat,
    },
    /// End a token
    Revoke {
        /// Its id, from `katcall token list`
        id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the cluster's configuration
    Get {
        /// How to print
        #[arg(short, long, default_value = "yaml")]
        output: DocumentFormat,
    },
    /// Change a setting (not yet)
    Set {
        /// Setting and value
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ContextArgs {
    #[command(subcommand)]
    pub(crate) command: ContextCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List the clusters that katcall knows
    List,
    /// Use this cluster from now on
    Use {
        /// Its name
        name: String,
    },
    /// Remember a cluster by its connection file; the first one is used at once
    Add {
        /// How to call it
        name: String,
        /// Connection file, such as a copy of /etc/kat/admin.conf; - reads stdin
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Forget a cluster
    Remove {
        /// Its name
        name: String,
    },
    /// Print the name of the cluster in use
    Current,
}
