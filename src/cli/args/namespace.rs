//! The namespace that a command uses.

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Id, parser::ValueSource};

use crate::names;

#[derive(Debug, Args)]
struct NamespaceFlag {
    /// Namespace [env: KAT_NAMESPACE]
    #[arg(
        short,
        long,
        env = "KAT_NAMESPACE",
        hide_env = true,
        default_value = "default",
        value_parser = names::namespace
    )]
    namespace: String,
}

/// The namespace, and where it comes from.
#[derive(Debug, Clone)]
pub(crate) struct NamespaceOption {
    pub(crate) namespace: String,
    /// Whether the namespace is given on the command line; other arguments must not contradict it
    /// then.
    pub(crate) written: bool,
}

impl FromArgMatches for NamespaceOption {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let NamespaceFlag { namespace } = NamespaceFlag::from_arg_matches(matches)?;
        let source = matches.value_source("namespace");
        Ok(Self {
            namespace,
            written: source == Some(ValueSource::CommandLine),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for NamespaceOption {
    fn group_id() -> Option<Id> {
        NamespaceFlag::group_id()
    }

    fn augment_args(command: Command) -> Command {
        NamespaceFlag::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        NamespaceFlag::augment_args_for_update(command)
    }
}
