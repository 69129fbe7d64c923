//! The namespace that a command uses.

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Id, parser::ValueSource};

use super::GlobalArgs;
use crate::{connect, references};

#[derive(Debug, Args)]
struct NamespaceFlag {
    /// Namespace [env: KAT_NAMESPACE] [default: that of the connection, or default]
    #[arg(
        short,
        long,
        env = "KAT_NAMESPACE",
        hide_env = true,
        hide_default_value = true,
        default_value = "default",
        value_parser = references::namespace
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

impl NamespaceOption {
    /// For commands whose objects are in no namespace.
    pub(crate) fn unused() -> Self {
        Self {
            namespace: String::new(),
            written: false,
        }
    }
}

impl FromArgMatches for NamespaceOption {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let NamespaceFlag { namespace } = NamespaceFlag::from_arg_matches(matches)?;
        let source = matches.value_source("namespace");
        let namespace = match source {
            Some(ValueSource::DefaultValue) => of_connection(matches).unwrap_or(namespace),
            _ => namespace,
        };
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

/// The namespace of the connection that the command will use, if the connection has one. A
/// connection that cannot be read is reported when the command connects.
fn of_connection(matches: &ArgMatches) -> Option<String> {
    let global = GlobalArgs {
        context: matches.try_get_one("context").ok()?.cloned(),
        connection: matches.try_get_one("connection").ok()?.cloned(),
    };
    connect::namespace(&global)
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{KatcallArgs, KatcallCommand};

    fn namespace_of(arguments: &[&str]) -> String {
        let parsed = KatcallArgs::try_parse_from(arguments).unwrap();
        match parsed.command {
            KatcallCommand::Logs(logs) => logs.namespace.namespace,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_connections_namespace_is_taken_where_none_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ci.conf");
        let connection = r#"{"cluster":"home","clusterUid":"u","endpoints":["a:1"],"ca":"","token":"t","namespace":"shop"}"#;
        std::fs::write(&path, connection).unwrap();
        let file = path.to_str().unwrap();
        for arguments in [
            ["katcall", "--connection", file, "logs", "web"],
            ["katcall", "logs", "web", "--connection", file],
        ] {
            assert_eq!(namespace_of(&arguments), "shop");
        }
        let written = [
            "katcall",
            "logs",
            "web",
            "--connection",
            file,
            "-n",
            "other",
        ];
        assert_eq!(namespace_of(&written), "other");
        std::fs::write(&path, "broken").unwrap();
        let broken = ["katcall", "logs", "web", "--connection", file];
        assert_eq!(namespace_of(&broken), "default");
    }
}
