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
    /// Create a token; its secret is printed once
    Create {
        /// Scope of the token: admin, read, or deploy:NAMESPACE
        #[arg(
            long,
            value_parser = token::parse_scope,
            required_unless_present = "join",
            conflicts_with = "join"
        )]
        scope: Option<kat_types::api::Scope>,
        /// Create a token for a machine that joins, and print the command to run there
        #[arg(long)]
        join: bool,
        /// With --join: number of machines that may join with the token [default: 1]
        #[arg(long, value_name = "N", requires = "join", value_parser = clap::value_parser!(u32).range(1..))]
        uses: Option<u32>,
        /// With --join: let any machine that reaches the API join, without the token's secret
        #[arg(long, requires = "join", conflicts_with = "scope")]
        insecure_trust_network: bool,
        /// Name of the token, for people
        #[arg(long, default_value = "")]
        name: String,
        /// Lifetime, such as 12h or 30d [default: 90d; with --join 1h; with --scope admin unlimited]
        #[arg(long, value_name = "TIME", value_parser = time::parse_duration)]
        ttl: Option<Duration>,
        /// Output format: the whole response, or with `connection` a connection file with the token
        #[arg(short, long)]
        output: Option<TokenFormat>,
    },
    /// List tokens, without their secrets
    List {
        /// Output format
        #[arg(short, long, default_value = "table")]
        output: OutputFormat,
    },
    /// Revoke a token
    Revoke {
        /// Id of the token, from `katcall token list`
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
        /// Output format
        #[arg(short, long, default_value = "yaml")]
        output: DocumentFormat,
    },
    /// Change a setting (not implemented yet)
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
    /// Select the cluster of later commands
    Use {
        /// Name of the cluster
        name: String,
    },
    /// Add a cluster by its connection file; the first one is selected
    Add {
        /// Name of the cluster
        name: String,
        /// Connection file, such as a copy of /etc/kat/admin.conf; - reads stdin
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Remove a cluster
    Remove {
        /// Name of the cluster
        name: String,
    },
    /// Print the name of the selected cluster
    Current,
}
