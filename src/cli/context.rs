//! The clusters that katcall knows: `~/.config/kat/contexts.json`, which only its owner may read.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    args::{ContextArgs, ContextCommand},
    connect,
    console::Console,
    errors::CliError,
    output::table::{Cell, Table},
};
use kat_bundle::nearest_name;
use kat_client::{Client, ClientOptions, LearnedConnection};
use kat_types::{api::Connection, encoding::json};

/// The file's content.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Contexts {
    current: Option<String>,
    contexts: BTreeMap<String, Connection>,
}

/// Path of the file: below XDG_CONFIG_HOME, or ~/.config.
pub(super) fn file() -> Result<PathBuf, CliError> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CONFIG_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".config")))
        .map(|folder| folder.join("kat/contexts.json"))
        .ok_or_else(|| CliError::failed("there is no home to keep contexts in: HOME is not set"))
}

impl Contexts {
    /// Reads the file; without one there are no contexts.
    pub(super) fn read(path: Option<&Path>) -> Result<Self, CliError> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        match fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| {
                CliError::failed(format!("contexts `{}`: {error}", path.display()))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(CliError::failed(format!(
                "contexts `{}`: {error}",
                path.display()
            ))),
        }
    }

    pub(super) fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    pub(super) fn get(&self, name: &str) -> Result<&Connection, CliError> {
        self.contexts.get(name).ok_or_else(|| {
            let error = CliError::not_found(format!("there is no context `{name}`"));
            let names = self.contexts.keys().map(String::as_str);
            match nearest_name(name, names) {
                Some(near) => error.hinted(format!("did you mean `{near}`?")),
                None => error.hinted("`katcall context list` shows them"),
            }
        })
    }

    /// Replaces the file atomically, with mode 0600 in a folder of mode 0700.
    fn write(&self, path: &Path) -> Result<(), CliError> {
        use std::os::unix::fs::DirBuilderExt;
        let store = || -> io::Result<()> {
            let folder = path.parent().unwrap_or(Path::new("."));
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
            let mut text = json::pretty(&path.display().to_string(), self)?;
            text.push(b'\n');
            let mut new = tempfile::NamedTempFile::new_in(folder)?;
            new.write_all(&text)?;
            new.as_file().sync_all()?;
            new.persist(path)?;
            Ok(())
        };
        store().map_err(|error| CliError::failed(format!("contexts `{}`: {error}", path.display())))
    }
}

/// Keeps what servers of a context taught. Does nothing if the context is gone, or is one to another
/// cluster.
pub(super) fn keep_learned(
    path: &Path,
    name: &str,
    learned: &LearnedConnection,
) -> Result<(), CliError> {
    let mut contexts = Contexts::read(Some(path))?;
    let connection = contexts.contexts.get_mut(name);
    let Some(connection) = connection.filter(|one| one.cluster_uid == learned.cluster_uid) else {
        return Ok(());
    };
    learned.enter(connection);
    contexts.write(path)
}

/// Names of the known clusters; empty where they can't be read.
pub(super) fn names() -> Vec<String> {
    let contexts = file().and_then(|path| Contexts::read(Some(&path)));
    contexts.map_or_else(
        |_| Vec::new(),
        |contexts| contexts.contexts.into_keys().collect(),
    )
}

pub(super) fn run(console: &Console, arguments: &ContextArgs) -> Result<(), CliError> {
    let path = file()?;
    let mut contexts = Contexts::read(Some(&path))?;
    if connect::is_open_to_others(&path) {
        console.warning(&format!(
            "others may read the tokens in `{}`; `chmod 600` mends it",
            path.display()
        ));
    }
    match &arguments.command {
        ContextCommand::List => list(console, &contexts),
        ContextCommand::Current => match contexts.current() {
            Some(name) => console.line(name),
            None => Err(CliError::not_found("no context is in use")
                .hinted("`katcall context use NAME` chooses one")),
        },
        ContextCommand::Use { name } => {
            contexts.get(name)?;
            contexts.current = Some(name.clone());
            contexts.write(&path)?;
            console.note(&format!("context `{name}` is in use"));
            Ok(())
        }
        ContextCommand::Add { name, file } => {
            let connection = read(file)?;
            if contexts.current.is_none() {
                contexts.current = Some(name.clone());
            }
            let cluster = connection.cluster.clone();
            let known = contexts.contexts.insert(name.clone(), connection).is_some();
            contexts.write(&path)?;
            let word = if known { "replaced" } else { "added" };
            let used = if contexts.current() == Some(name) {
                " and in use"
            } else {
                ""
            };
            console.note(&format!(
                "context `{name}` for cluster `{cluster}` is {word}{used}"
            ));
            Ok(())
        }
        ContextCommand::Remove { name } => {
            contexts.get(name)?;
            contexts.contexts.remove(name);
            if contexts.current() == Some(name) {
                contexts.current = None;
                console.note("no context is in use now");
            }
            contexts.write(&path)?;
            console.note(&format!("context `{name}` is removed"));
            Ok(())
        }
    }
}

fn list(console: &Console, contexts: &Contexts) -> Result<(), CliError> {
    let mut table = Table::new(vec!["CURRENT", "NAME", "CLUSTER", "ENDPOINTS"]);
    for (name, connection) in &contexts.contexts {
        let mark = if contexts.current() == Some(name) {
            "*"
        } else {
            " "
        };
        table.row(vec![
            Cell::new(mark),
            Cell::new(name),
            Cell::new(&connection.cluster),
            Cell::new(connection.endpoints.join(",")),
        ]);
    }
    if table.is_empty() {
        console.note("no contexts");
        return Ok(());
    }
    console.print(&table.within(console.width).render(console.colour))
}

/// Reads a connection and checks that a client can be made of it.
fn read(path: &Path) -> Result<Connection, CliError> {
    let wrong = |error: String| {
        let reason = connect::reason(&error);
        CliError::failed(format!("connection `{}`: {reason}", path.display()))
    };
    let connection = if path == Path::new("-") {
        connect::read(io::stdin().lock())
    } else {
        let file = fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
        connect::read(file)
    }
    .map_err(wrong)?;
    Client::from_connection(&connection, ClientOptions::default())?;
    Ok(connection)
}
