//! Arguments for tokens, the configuration, and contexts.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{super::time, DocumentFormat, OutputFormat, TokenFormat, examples};
use crate::commands::cluster::token;

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token; its secret is printed once
    #[command(after_help = examples::TOKEN_CREATE)]
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
    /// Revoke tokens
    Revoke {
        /// Ids of tokens, from `katcall token list`
        #[arg(value_name = "ID", required = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the cluster's configuration as a cluster.kat, or the values of settings
    Get {
        /// Settings of which only the values are printed
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Output format
        #[arg(short, long, default_value = "yaml", conflicts_with = "keys")]
        output: DocumentFormat,
    },
    /// Change settings, all of them or none
    Set {
        /// Setting and value, such as nodeLossTimeoutSeconds=90
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
        #[command(flatten)]
        plan: ConfigPlanArgs,
    },
    /// Set settings to their defaults
    Unset {
        /// Settings
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        plan: ConfigPlanArgs,
    },
    /// Change the configuration in an editor: $VISUAL, $EDITOR, or vi
    Edit {
        #[command(flatten)]
        plan: ConfigPlanArgs,
    },
    /// List the kept configurations, who made them, and what they changed
    History {
        /// Output format: each configuration as a whole
        #[arg(short, long)]
        output: Option<DocumentFormat>,
    },
    /// Return to an earlier configuration
    Rollback {
        /// Number of the configuration, from `katcall config history`
        #[arg(value_name = "NUMBER")]
        number: u64,
        #[command(flatten)]
        plan: ConfigPlanArgs,
    },
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ConfigPlanArgs {
    /// Only print what would change, and the effect
    #[arg(long, visible_alias = "plan")]
    pub(crate) dry_run: bool,
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
