//! Finds the cluster to connect to.

mod environment;

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{Access, access};

use self::environment::{ConnectionVariables, EnvironmentConnection};
use super::{args::GlobalArgs, context, errors::CliError, references};
use kat_client::{Client, ClientOptions, LearnedConnection};
use kat_types::{api::Connection, encoding::json};

/// The administrator's connection file on machines that hold etcd.
const ADMIN: &str = "/etc/kat/admin.conf";
const SOCKET: &str = "/run/kat/api.sock";
/// Longest wait for this machine's own agent: it looks for the leader for 2 s before it answers.
const OWN_AGENT_LIMIT: Duration = Duration::from_secs(3);
/// Largest connection file, bytes.
const MAX_FILE: u64 = 1 << 20;

/// The places that are searched for a connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionSearch {
    /// The environment variables KAT_SERVER, KAT_TOKEN and KAT_CA.
    environment: ConnectionVariables,
    /// The environment variable KAT_CONNECTION.
    pub(super) variable: Option<PathBuf>,
    /// The file of contexts; `None` without a home folder.
    pub(super) contexts: Option<PathBuf>,
    pub(super) admin: PathBuf,
    pub(super) socket: PathBuf,
}

impl ConnectionSearch {
    fn of_process() -> Self {
        Self {
            environment: ConnectionVariables::read(std::env::var_os),
            variable: std::env::var_os("KAT_CONNECTION")
                .filter(|value| !value.is_empty())
                .map(PathBuf::from),
            contexts: context::file().ok(),
            admin: ADMIN.into(),
            socket: SOCKET.into(),
        }
    }
}

/// A connection to the cluster.
#[derive(Debug, Clone)]
pub(super) enum ClusterConnection {
    /// Over TLS, as the environment variables say.
    Environment(Box<EnvironmentConnection>),
    /// Over TLS.
    Remote(Box<Connection>, ConnectionOrigin),
    /// Over a socket of this machine.
    Socket(PathBuf),
    /// Over TLS, or over a socket of this machine if TLS gets no answer: a machine that lost its
    /// network has lost its own address, too.
    Either(Box<Connection>, PathBuf),
}

/// Where a connection is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectionOrigin {
    /// A connection file, or a pipe.
    File(PathBuf),
    /// The context of this name.
    Context(String),
}

/// A client of the selected cluster.
pub(super) fn client(global: &GlobalArgs) -> Result<Client, CliError> {
    client_with(global, ClientOptions::default())
}

/// Like [`client`], with other time limits.
pub(super) fn client_with(global: &GlobalArgs, options: ClientOptions) -> Result<Client, CliError> {
    Ok(match find(global, &ConnectionSearch::of_process())? {
        ClusterConnection::Environment(connection) => connection.client(options)?,
        ClusterConnection::Remote(connection, _) => Client::from_connection(&connection, options)?,
        ClusterConnection::Socket(path) => Client::from_unix_socket(&path, options)?,
        ClusterConnection::Either(connection, path) => {
            Client::from_connection(&connection, options)?.or_unix_socket(&path)?
        }
    })
}

/// A client of this machine's own agent, where [`client`] asks other servers of the cluster first.
/// It waits for a short time only.
pub(super) fn own_agent(global: &GlobalArgs) -> Option<Client> {
    let path = own_socket(global, &ConnectionSearch::of_process())?;
    let options = ClientOptions {
        connect_timeout: OWN_AGENT_LIMIT,
        request_timeout: OWN_AGENT_LIMIT,
        retry_for: Duration::ZERO,
        unreachable_for: Duration::ZERO,
        ..ClientOptions::default()
    };
    Client::from_unix_socket(&path, options).ok()
}

fn own_socket(global: &GlobalArgs, places: &ConnectionSearch) -> Option<PathBuf> {
    // A connection that was named may be a pipe, which can be read once only.
    let is_named = global.names_a_connection() || places.variable.is_some();
    if is_named || places.environment.names_a_server() {
        return None;
    }
    match find(global, places).ok()? {
        ClusterConnection::Either(_, path) => Some(path),
        ClusterConnection::Environment(_)
        | ClusterConnection::Remote(..)
        | ClusterConnection::Socket(_) => None,
    }
}

/// What is wrong with variables that name no connection; `None` where a flag names one.
pub(super) fn warning(global: &GlobalArgs) -> Option<String> {
    warning_at(global, &ConnectionSearch::of_process())
}

fn warning_at(global: &GlobalArgs, places: &ConnectionSearch) -> Option<String> {
    if global.names_a_connection() {
        return None;
    }
    let name = places.environment.without_effect()?;
    Some(format!("{name} has no effect, since KAT_SERVER is not set"))
}

/// The namespace of the connection that [`find`] selects, or of its token; `None` where it has none,
/// or cannot be read.
pub(super) fn namespace(global: &GlobalArgs) -> Option<String> {
    namespace_at(global, &ConnectionSearch::of_process())
}

/// The namespace of commands where none is written: that of `KAT_NAMESPACE`, of the connection
/// or its token, or `default`.
pub(super) fn default_namespace(global: &GlobalArgs) -> String {
    let variable = std::env::var("KAT_NAMESPACE").ok();
    variable
        .filter(|text| references::namespace(text).is_ok())
        .or_else(|| namespace(global))
        .unwrap_or_else(|| "default".to_owned())
}

fn namespace_at(global: &GlobalArgs, places: &ConnectionSearch) -> Option<String> {
    // The file of KAT_CA may be a pipe, too.
    if !global.names_a_connection() && places.environment.names_a_server() {
        return places.environment.namespace();
    }
    // A pipe, such as `--connection <(...)`, can be read once only, and the client needs it.
    let variable = places
        .variable
        .as_ref()
        .filter(|_| global.context.is_none());
    if global
        .connection
        .as_ref()
        .or(variable)
        .is_some_and(|path| !path.is_file())
    {
        return None;
    }
    match find(global, places).ok()? {
        ClusterConnection::Remote(connection, _) | ClusterConnection::Either(connection, _) => {
            connection.namespace
        }
        ClusterConnection::Environment(_) | ClusterConnection::Socket(_) => None,
    }
}

/// Searches the places in order; the first one with a connection is used.
pub(super) fn find(
    global: &GlobalArgs,
    places: &ConnectionSearch,
) -> Result<ClusterConnection, CliError> {
    if let Some(path) = &global.connection {
        return at(path);
    }
    if let Some(name) = &global.context {
        let contexts = context::Contexts::read(places.contexts.as_deref())?;
        return in_context(&contexts, name);
    }
    if let Some(connection) = places.environment.connection()? {
        return Ok(ClusterConnection::Environment(Box::new(connection)));
    }
    if let Some(path) = &places.variable {
        return at(path);
    }
    let contexts = context::Contexts::read(places.contexts.as_deref())?;
    if let Some(name) = contexts.current() {
        return in_context(&contexts, name);
    }
    let usable = Access::READ_OK | Access::WRITE_OK;
    let local = access(&places.socket, usable).is_ok();
    if access(&places.admin, Access::READ_OK).is_ok() {
        return Ok(match at(&places.admin)? {
            ClusterConnection::Remote(connection, _) if local => {
                ClusterConnection::Either(connection, places.socket.clone())
            }
            way => way,
        });
    }
    if local {
        return Ok(ClusterConnection::Socket(places.socket.clone()));
    }
    Err(no_connection_error(places))
}

fn in_context(contexts: &context::Contexts, name: &str) -> Result<ClusterConnection, CliError> {
    let connection = Box::new(contexts.get(name)?.clone());
    let origin = ConnectionOrigin::Context(name.to_owned());
    Ok(ClusterConnection::Remote(connection, origin))
}

/// Keeps in the place of the connection that [`find`] selects what servers taught. A pipe keeps
/// nothing, and neither do the environment's variables. Nothing is kept in a connection to another
/// cluster than the one with this uid: another context may have been chosen meanwhile.
///
/// # Errors
/// The file can't be written.
pub(super) fn keep_learned(
    global: &GlobalArgs,
    learned: &LearnedConnection,
) -> Result<(), CliError> {
    keep_learned_at(global, &ConnectionSearch::of_process(), learned)
}

fn keep_learned_at(
    global: &GlobalArgs,
    places: &ConnectionSearch,
    learned: &LearnedConnection,
) -> Result<(), CliError> {
    let given = global.connection.as_ref();
    let given = given.or(places
        .variable
        .as_ref()
        .filter(|_| global.context.is_none()));
    if given.is_some_and(|path| !path.is_file()) {
        return Ok(());
    }
    let is_meant = |connection: &Connection| connection.cluster_uid == learned.cluster_uid;
    match find(global, places)? {
        ClusterConnection::Remote(connection, _) | ClusterConnection::Either(connection, _)
            if !is_meant(&connection) =>
        {
            Ok(())
        }
        ClusterConnection::Remote(_, ConnectionOrigin::Context(name)) => match &places.contexts {
            Some(file) => context::keep_learned(file, &name, learned),
            None => Ok(()),
        },
        ClusterConnection::Remote(connection, ConnectionOrigin::File(path)) => {
            replace(&path, *connection, learned)
        }
        ClusterConnection::Either(connection, _) => replace(&places.admin, *connection, learned),
        ClusterConnection::Environment(_) | ClusterConnection::Socket(_) => Ok(()),
    }
}

/// Replaces a connection file atomically, with the owner and the mode that it has.
fn replace(
    path: &Path,
    mut connection: Connection,
    learned: &LearnedConnection,
) -> Result<(), CliError> {
    learned.enter(&mut connection);
    let store = || -> io::Result<()> {
        // The file that a link names is replaced, and not the link.
        let path = fs::canonicalize(path)?;
        let before = fs::metadata(&path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut text = json::pretty(&path.display().to_string(), &connection)?;
        text.push(b'\n');
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        new.write_all(&text)?;
        std::os::unix::fs::fchown(new.as_file(), Some(before.uid()), Some(before.gid()))?;
        new.as_file().set_permissions(before.permissions())?;
        new.as_file().sync_all()?;
        new.persist(&path)?;
        Ok(())
    };
    store().map_err(|error| CliError::failed(format!("connection `{}`: {error}", path.display())))
}

fn no_connection_error(places: &ConnectionSearch) -> CliError {
    if places.socket.exists() || places.admin.exists() {
        return CliError::unreachable("the cluster of this machine is not open to this user").hinted(
            "use `sudo katcall ...`, or join the group that may: `sudo usermod -aG kat $USER`, then log in again",
        );
    }
    CliError::unreachable("no cluster is known here").hinted(
        "on a machine of the cluster, `systemctl status kat-agent` says whether it runs; \
         on one of no cluster yet, run `sudo kat-agent init`, or what `katcall token create --join` prints; \
         elsewhere, copy its /etc/kat/admin.conf and run `katcall context add NAME --file admin.conf`",
    )
}

fn at(path: &Path) -> Result<ClusterConnection, CliError> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(path, &error.to_string()))?;
    if metadata.file_type().is_socket() {
        return Ok(ClusterConnection::Socket(path.to_owned()));
    }
    let file = fs::File::open(path).map_err(|error| unreadable(path, &error.to_string()))?;
    let connection = read(file).map_err(|reason| unreadable(path, &reason))?;
    let origin = ConnectionOrigin::File(path.to_owned());
    Ok(ClusterConnection::Remote(Box::new(connection), origin))
}

fn unreadable(path: &Path, error: &str) -> CliError {
    let reason = reason(error);
    CliError::unreachable(format!("connection `{}`: {reason}", path.display()))
}

/// The message of an error of the system as part of another message.
pub(super) fn reason(error: &str) -> String {
    let text = error.split(" (os error").next().unwrap_or(error);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(letters).collect()
    })
}

/// Reads a connection file: JSON as `kat-agent init` writes it to /etc/kat/admin.conf.
pub(super) fn read(source: impl Read) -> Result<Connection, String> {
    let mut text = String::new();
    source
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("it is larger than {MAX_FILE} bytes"));
    }
    let connection: Connection = serde_json::from_str(&text)
        .map_err(|error| format!("it is no connection file: {error}"))?;
    Ok(connection)
}

/// Whether users other than the owner may read the file.
pub(super) fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn connection(cluster: &str) -> String {
        format!(
            r#"{{"cluster":"{cluster}","clusterUid":"u","endpoints":["a:1"],"ca":"","token":"t"}}"#
        )
    }

    fn places(folder: &Path) -> ConnectionSearch {
        ConnectionSearch {
            environment: ConnectionVariables::default(),
            variable: None,
            contexts: Some(folder.join("contexts.json")),
            admin: folder.join("admin.conf"),
            socket: folder.join("api.sock"),
        }
    }

    fn found(way: &ClusterConnection) -> String {
        match way {
            ClusterConnection::Environment(connection) => connection.endpoints().join(","),
            ClusterConnection::Remote(connection, _) => connection.cluster.clone(),
            ClusterConnection::Socket(path) => {
                path.file_name().unwrap().to_string_lossy().into_owned()
            }
            ClusterConnection::Either(connection, path) => format!(
                "{} or {}",
                connection.cluster,
                path.file_name().unwrap().to_string_lossy()
            ),
        }
    }

    fn variables(set: &[(&str, &str)]) -> ConnectionVariables {
        ConnectionVariables::read(|name| {
            let mut set = set.iter();
            set.find(|(key, _)| *key == name)
                .map(|(_, value)| value.into())
        })
    }

    /// A token that contains the hash of the authority.
    fn token() -> String {
        format!("kat1.0123456789ab.{}.{}", "A".repeat(43), "ab".repeat(32))
    }

    #[test]
    fn the_variables_need_a_server_and_bring_the_namespace_of_their_token() {
        let folder = tempfile::tempdir().unwrap();
        let mut places = places(folder.path());
        let mut global = GlobalArgs::default();
        let shop = connection("home").replace(r#""token""#, r#""namespace":"shop","token""#);
        fs::write(folder.path().join("ci.conf"), shop).unwrap();
        places.variable = Some(folder.path().join("ci.conf"));

        places.environment = variables(&[("KAT_CA", "ca.pem")]);
        assert_eq!(found(&find(&global, &places).unwrap()), "home");
        assert_eq!(
            warning_at(&global, &places).as_deref(),
            Some("KAT_CA has no effect, since KAT_SERVER is not set")
        );
        // Another connection has other rights than the token.
        places.environment = variables(&[("KAT_TOKEN", &token())]);
        let refused = find(&global, &places).unwrap_err();
        assert_eq!(refused.exit_code(), 2, "{refused}");

        places.environment = variables(&[("KAT_SERVER", "a"), ("KAT_TOKEN", &token())]);
        assert_eq!(namespace_at(&global, &places), None);
        assert_eq!(warning_at(&global, &places), None);
        for (text, expected) in [
            (format!(" {}.store\n", token()), Some("store")),
            (format!("{}.Store", token()), None),
        ] {
            places.environment = variables(&[("KAT_SERVER", "a"), ("KAT_TOKEN", &text)]);
            assert_eq!(namespace_at(&global, &places).as_deref(), expected);
        }

        // A flag is stronger, also than variables that cannot be used.
        places.environment = variables(&[("KAT_SERVER", "")]);
        assert!(find(&global, &places).is_err());
        global.connection = places.variable.clone();
        assert_eq!(found(&find(&global, &places).unwrap()), "home");
        assert_eq!(namespace_at(&global, &places).as_deref(), Some("shop"));
    }

    #[test]
    fn the_places_are_asked_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut places = places(folder.path());
        let mut global = GlobalArgs::default();

        let error = find(&global, &places).unwrap_err();
        assert_eq!(
            (error.exit_code(), error.to_string().as_str()),
            (4, "no cluster is known here")
        );

        let _socket = UnixListener::bind(&places.socket).unwrap();
        assert_eq!(found(&find(&global, &places).unwrap()), "api.sock");
        assert_eq!(own_socket(&global, &places), None);

        fs::write(&places.admin, connection("admin")).unwrap();
        assert_eq!(found(&find(&global, &places).unwrap()), "admin or api.sock");
        let socket = places.socket.clone();
        assert_eq!(own_socket(&global, &places), Some(socket));

        let contexts = format!(
            r#"{{"current":"home","contexts":{{"home":{},"work":{}}}}}"#,
            connection("home"),
            connection("work")
        );
        fs::write(places.contexts.as_ref().unwrap(), contexts).unwrap();
        assert_eq!(found(&find(&global, &places).unwrap()), "home");

        fs::write(at("variable"), connection("variable")).unwrap();
        places.variable = Some(at("variable"));
        assert_eq!(found(&find(&global, &places).unwrap()), "variable");
        assert_eq!(own_socket(&global, &places), None);

        places.environment = variables(&[("KAT_SERVER", "a"), ("KAT_TOKEN", &token())]);
        let connection = find(&global, &places).unwrap();
        assert_eq!(found(&connection), "a:9115");

        global.context = Some("work".to_owned());
        assert_eq!(found(&find(&global, &places).unwrap()), "work");
        global.context = Some("wrok".to_owned());
        let error = find(&global, &places).unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("did you mean `work`?"));

        global.connection = Some(places.socket.clone());
        assert_eq!(found(&find(&global, &places).unwrap()), "api.sock");
    }

    #[test]
    fn a_connection_brings_its_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        let mut global = GlobalArgs::default();
        assert_eq!(namespace_at(&global, &places), None);
        let file = folder.path().join("ci.conf");
        global.connection = Some(file.clone());
        fs::write(&file, connection("home")).unwrap();
        assert_eq!(namespace_at(&global, &places), None);
        let shop = connection("home").replace(r#""token""#, r#""namespace":"shop","token""#);
        fs::write(&file, shop).unwrap();
        assert_eq!(namespace_at(&global, &places).as_deref(), Some("shop"));
    }

    fn learned_of(cluster_uid: &str) -> LearnedConnection {
        LearnedConnection {
            cluster_uid: cluster_uid.to_owned(),
            ca: Some("new".to_owned()),
            ca_before: String::new(),
        }
    }

    #[test]
    fn what_servers_taught_is_kept_where_the_connection_is() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        let mut global = GlobalArgs::default();
        let required = |way: ClusterConnection| match way {
            ClusterConnection::Remote(connection, _) | ClusterConnection::Either(connection, _) => {
                let learned = connection.api_name_required;
                assert_eq!(connection.ca, if learned { "new" } else { "" });
                learned
            }
            ClusterConnection::Environment(_) | ClusterConnection::Socket(_) => panic!("another"),
        };
        let contexts = format!(
            r#"{{"current":"home","contexts":{{"home":{},"work":{}}}}}"#,
            connection("home"),
            connection("work")
        );
        fs::write(places.contexts.as_ref().unwrap(), contexts).unwrap();
        assert!(!required(find(&global, &places).unwrap()));
        keep_learned_at(&global, &places, &learned_of("another")).unwrap();
        assert!(!required(find(&global, &places).unwrap()));
        keep_learned_at(&global, &places, &learned_of("u")).unwrap();
        assert!(required(find(&global, &places).unwrap()));
        global.context = Some("work".to_owned());
        assert!(
            !required(find(&global, &places).unwrap()),
            "another cluster"
        );

        let file = folder.path().join("ci.conf");
        let shop = connection("home").replace(r#""token""#, r#""namespace":"shop","token""#);
        fs::write(&file, shop).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let link = folder.path().join("link.conf");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        global.connection = Some(link.clone());
        assert!(!required(find(&global, &places).unwrap()));
        keep_learned_at(&global, &places, &learned_of("another")).unwrap();
        assert!(!required(find(&global, &places).unwrap()));
        keep_learned_at(&global, &places, &learned_of("u")).unwrap();
        assert!(required(find(&global, &places).unwrap()));
        assert_eq!(namespace_at(&global, &places).as_deref(), Some("shop"));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);

        // A socket and a pipe keep nothing.
        let _socket = UnixListener::bind(&places.socket).unwrap();
        global.connection = Some(places.socket.clone());
        keep_learned_at(&global, &places, &learned_of("u")).unwrap();
    }

    #[test]
    fn a_connection_in_a_pipe_is_left_for_the_client() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, connection("home").as_bytes()).unwrap();
        drop(writer);
        let global = GlobalArgs {
            context: None,
            connection: Some(format!("/proc/self/fd/{}", reader.as_raw_fd()).into()),
        };
        assert_eq!(namespace_at(&global, &places), None);
        assert_eq!(found(&find(&global, &places).unwrap()), "home");
    }

    #[test]
    fn a_broken_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "cluster: home").unwrap();
        let error = at(&path).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
        let missing = at(&folder.path().join("y")).unwrap_err().to_string();
        assert!(missing.ends_with("no such file or directory"), "{missing}");
    }
}
