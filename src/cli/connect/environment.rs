//! The connection that the environment variables KAT_SERVER, KAT_TOKEN and KAT_CA describe
//! together, for pipelines that keep a token as a variable and have no connection file.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs,
    io::Read,
    net::Ipv6Addr,
    path::Path,
};

use crate::errors::CliError;
use kat_client::{Client, ClientError, ClientOptions, Token, TrustedAuthority};
use kat_types::resource::ClusterSpec;

const SERVER: &str = "KAT_SERVER";
const TOKEN: &str = "KAT_TOKEN";
const AUTHORITY: &str = "KAT_CA";

/// Prefix of a hash in KAT_CA.
const HASH: &str = "sha256:";
/// How PEM begins; what has it is no path.
const PEM: &str = "-----BEGIN ";
/// Largest file that KAT_CA may name, bytes.
const MAX_FILE: u64 = 1 << 20;

/// The next step of somebody who lacks one of the variables.
const NEXT_STEP: &str = "on a machine of the cluster, `katcall token create --scope SCOPE -o connection` prints a connection with its servers, its token and its authority";

/// The values of the variables.
#[derive(Clone, Default)]
pub(crate) struct ConnectionVariables {
    server: Option<OsString>,
    token: Option<OsString>,
    authority: Option<OsString>,
}

impl fmt::Debug for ConnectionVariables {
    /// Omits the token.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ConnectionVariables")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl ConnectionVariables {
    /// Reads the variables with `variable`, which returns the value of a name.
    pub(crate) fn read(variable: impl Fn(&'static str) -> Option<OsString>) -> Self {
        Self {
            server: variable(SERVER),
            token: variable(TOKEN),
            authority: variable(AUTHORITY),
        }
    }

    /// Whether they ask for a connection, usable or not.
    pub(crate) fn names_a_server(&self) -> bool {
        self.server.is_some()
    }

    /// The only namespace in which the token may do something; `None` also for one that cannot be
    /// read, which [`Self::connection`] reports.
    pub(crate) fn namespace(&self) -> Option<String> {
        let token = Token::parse(self.token.as_ref()?.to_str()?).ok()?;
        token.namespace().map(str::to_owned)
    }

    /// The name of a variable that has no effect, because KAT_SERVER is not set.
    pub(crate) fn without_effect(&self) -> Option<&'static str> {
        let alone = self.server.is_none() && is_set(&self.authority);
        alone.then_some(AUTHORITY)
    }

    /// The connection; `None` without KAT_SERVER and KAT_TOKEN.
    ///
    /// # Errors
    /// A wrong usage that names the variable which is missing, empty or malformed. The token is in
    /// no message. KAT_TOKEN without KAT_SERVER is refused as well: the command would run with the
    /// rights of another connection than its user gave.
    pub(crate) fn connection(&self) -> Result<Option<EnvironmentConnection>, CliError> {
        let Some(server) = text(SERVER, self.server.as_deref())? else {
            return match is_set(&self.token) {
                true => Err(self.token_alone()),
                false => Ok(None),
            };
        };
        let endpoints = server
            .split(',')
            .map(|address| endpoint(address.trim()))
            .collect::<Result<Vec<_>, _>>()?;
        let Some(token) = text(TOKEN, self.token.as_deref())? else {
            return Err(missing(
                TOKEN,
                "the server answers no request without a token",
            ));
        };
        let token = Token::parse(token).map_err(|error| wrong(TOKEN, &error.to_string()))?;
        let authority = match (
            text(AUTHORITY, self.authority.as_deref())?,
            token.authority(),
        ) {
            (Some(text), _) => authority(text)?,
            (None, Some(hash)) => {
                TrustedAuthority::from_hash(hash).map_err(|reason| wrong(TOKEN, &reason))?
            }
            (None, None) => {
                return Err(missing(
                    AUTHORITY,
                    "the cluster's authority, without which anybody who answers there would get the token",
                ));
            }
        };
        Ok(Some(EnvironmentConnection {
            endpoints,
            authority,
            token,
        }))
    }
}

impl ConnectionVariables {
    /// The error of a token without a server, which names each variable that is missing.
    fn token_alone(&self) -> CliError {
        let token = self.token.as_ref().and_then(|token| token.to_str());
        let token = token.and_then(|token| Token::parse(token.trim()).ok());
        let has_authority =
            is_set(&self.authority) || token.is_some_and(|token| token.authority().is_some());
        let missing = match has_authority {
            true => format!(
                "{SERVER} is not: the address that it is for, such as `127.0.0.1` on a machine of the cluster"
            ),
            false => format!(
                "{SERVER} and {AUTHORITY} are not: the address that it is for, such as `127.0.0.1` on a machine of the cluster, and the cluster's authority"
            ),
        };
        CliError::usage(format!("{TOKEN} is set, and {missing}")).hinted(format!(
            "unset {TOKEN} to use another connection; {NEXT_STEP}"
        ))
    }
}

fn is_set(value: &Option<OsString>) -> bool {
    value.as_ref().is_some_and(|text| !text.is_empty())
}

/// A connection whose parts come from the environment.
#[derive(Debug, Clone)]
pub(crate) struct EnvironmentConnection {
    /// `host:port`, in the order in which they are tried.
    endpoints: Vec<String>,
    authority: TrustedAuthority,
    token: Token,
}

impl EnvironmentConnection {
    pub(crate) fn client(&self, options: ClientOptions) -> Result<Client, ClientError> {
        Client::with_authority(&self.endpoints, &self.authority, &self.token, options)
    }

    #[cfg(test)]
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }
}

/// The text of a variable without white space around it; `None` where the variable is not set.
fn text<'a>(name: &str, value: Option<&'a OsStr>) -> Result<Option<&'a str>, CliError> {
    let Some(value) = value else {
        return Ok(None);
    };
    let text = value
        .to_str()
        .ok_or_else(|| wrong(name, "it is not UTF-8"))?;
    match text.trim() {
        "" => Err(CliError::usage(format!("{name} is empty")).hinted(format!(
            "unset {name}, or give it a value; a pipeline passes a variable that it does not know as an empty one"
        ))),
        text => Ok(Some(text)),
    }
}

fn missing(name: &str, what: &str) -> CliError {
    CliError::usage(format!("{SERVER} is set, and {name} is not: {what}")).hinted(NEXT_STEP)
}

fn wrong(name: &str, reason: &str) -> CliError {
    CliError::usage(format!("{name}: {reason}"))
}

/// An address as `host:port`. With a scheme, whose own port is another one, the port has to be
/// written.
fn endpoint(address: &str) -> Result<String, CliError> {
    let (with_scheme, place) = match address.strip_prefix("https://") {
        Some(place) => (true, place.strip_suffix('/').unwrap_or(place)),
        None => (false, address),
    };
    let parsed = match place.strip_prefix('[') {
        Some(rest) => bracketed(rest),
        None => named(place),
    };
    let parsed = parsed.filter(|endpoint| !with_scheme || endpoint == place);
    parsed.ok_or_else(|| {
        wrong(
            SERVER,
            &format!(
                "`{address}` is not an address, expected some such as `192.168.77.11`, `kat.example.org:9115`, `[2001:db8::1]:9115` or `https://127.0.0.1:9115`"
            ),
        )
    })
}

/// What follows the opening bracket of an IPv6 address.
fn bracketed(rest: &str) -> Option<String> {
    let (host, after) = rest.split_once(']')?;
    let host: Ipv6Addr = host.parse().ok()?;
    let port = match after {
        "" => default_port(),
        after => port(after.strip_prefix(':')?)?,
    };
    Some(format!("[{host}]:{port}"))
}

fn named(address: &str) -> Option<String> {
    let (host, port) = match address.split_once(':') {
        Some((host, text)) => (host, port(text)?),
        None => (address, default_port()),
    };
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let label = |label: &str| !label.is_empty() && label.len() <= 63 && label.bytes().all(letter);
    let host_fits = host.len() <= 253 && host.split('.').all(label);
    host_fits.then(|| format!("{host}:{port}"))
}

fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

/// The API's port of a cluster whose configuration names none.
fn default_port() -> u16 {
    ClusterSpec::default().api_port
}

/// The authority that KAT_CA describes: PEM, a hash, or the path of a file with PEM.
fn authority(text: &str) -> Result<TrustedAuthority, CliError> {
    if let Some(hash) = text.strip_prefix(HASH) {
        return TrustedAuthority::from_hash(hash).map_err(|reason| wrong(AUTHORITY, &reason));
    }
    if text.contains(PEM) {
        return TrustedAuthority::from_certificate(text)
            .map_err(|reason| wrong(AUTHORITY, &reason));
    }
    let path = Path::new(text);
    let in_file = |reason: &str| wrong(AUTHORITY, &format!("`{}`: {reason}", path.display()));
    let pem = file(path).map_err(|reason| in_file(&reason))?;
    TrustedAuthority::from_certificate(&pem).map_err(|reason| in_file(&reason))
}

fn file(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
        .map_err(|error| super::reason(&error.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("it is larger than {MAX_FILE} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use kat_pki::{Authority, AuthorityKind};

    use super::*;

    const UID: &str = "3f0c9a52-7a7e-4a43-9a0b-0d5a7f6f4f11";

    fn token() -> Token {
        Token::parse(&format!("kat1.0123456789ab.{}", "A".repeat(43))).unwrap()
    }

    fn certificate() -> String {
        let made = Authority::generate(AuthorityKind::Cluster, UID, Timestamp::now()).unwrap();
        made.certificate_pem().to_owned()
    }

    fn variables(set: &[(&str, &str)]) -> ConnectionVariables {
        let set: BTreeMap<&str, &str> = set.iter().copied().collect();
        ConnectionVariables::read(|name| set.get(name).map(OsString::from))
    }

    fn refused(set: &[(&str, &str)]) -> (String, String) {
        let error = variables(set).connection().unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        (error.to_string(), error.hint().unwrap_or_default())
    }

    #[test]
    fn an_address_has_the_apis_port_unless_it_names_one() {
        for (written, expected) in [
            ("192.168.77.11", "192.168.77.11:9115"),
            ("kat.example.org:443", "kat.example.org:443"),
            ("[2001:db8::1]", "[2001:db8::1]:9115"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443"),
            ("https://127.0.0.1:9115", "127.0.0.1:9115"),
            ("https://kat.example.org:443/", "kat.example.org:443"),
        ] {
            assert_eq!(endpoint(written).unwrap(), expected);
        }
        for wrong in [
            "",
            "https://kat.example.org",
            "https://kat.example.org:9115/v1alpha1",
            "http://kat.example.org:9115",
            "2001:db8::1",
            "[2001:db8::1",
            "[2001:db8::1]443",
            "[home]:443",
            "home:",
            "home:0",
            "home:+1",
            "home:65536",
            ".home",
            "ho me",
        ] {
            let error = endpoint(wrong).unwrap_err().to_string();
            assert!(error.starts_with("KAT_SERVER: `"), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_three_variables_make_a_connection() {
        let (certificate, token) = (certificate(), token().bearer());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        fs::write(&file, &certificate).unwrap();
        let hash = format!("sha256:{}", "AB:".repeat(31) + "AB");
        for authority in [certificate.as_str(), file.to_str().unwrap(), hash.as_str()] {
            let set = variables(&[
                ("KAT_SERVER", "192.168.77.11, [2001:db8::1]:443"),
                ("KAT_TOKEN", &format!("{token}\n")),
                ("KAT_CA", authority),
            ]);
            let found = set.connection().unwrap().unwrap();
            assert_eq!(
                found.endpoints(),
                ["192.168.77.11:9115", "[2001:db8::1]:443"]
            );
            assert_eq!(found.token.bearer(), token);
            match &found.authority {
                TrustedAuthority::Certificate { cluster_uid, .. } => assert_eq!(cluster_uid, UID),
                TrustedAuthority::Hash(hash) => assert_eq!(*hash, "ab".repeat(32)),
            }
            found.client(ClientOptions::default()).unwrap();
        }
    }

    #[test]
    fn a_token_with_the_hash_of_the_authority_needs_no_other() {
        let hash = "ab".repeat(32);
        let whole = format!("{}.{hash}", token().bearer());
        let set = [("KAT_SERVER", "home"), ("KAT_TOKEN", whole.as_str())];
        let found = variables(&set).connection().unwrap().unwrap();
        assert_eq!(found.authority, TrustedAuthority::Hash(hash));
        assert_eq!(found.token.bearer(), token().bearer());
    }

    #[test]
    fn a_token_is_never_sent_to_a_server_that_nothing_verifies() {
        let token = token().bearer();
        let set = [("KAT_SERVER", "home"), ("KAT_TOKEN", token.as_str())];
        let (error, hint) = refused(&set);
        assert_eq!(
            error,
            "KAT_SERVER is set, and KAT_CA is not: the cluster's authority, without which anybody who answers there would get the token"
        );
        assert!(
            hint.contains("`katcall token create --scope SCOPE -o connection`"),
            "{hint}"
        );
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_named() {
        let (certificate, token) = (certificate(), token().bearer());
        let good = [
            ("KAT_SERVER", "home"),
            ("KAT_TOKEN", token.as_str()),
            ("KAT_CA", certificate.as_str()),
        ];
        let broken = certificate.replace("MII", "!!!");
        for (name, value, expected) in [
            ("KAT_SERVER", " ", "KAT_SERVER is empty"),
            ("KAT_SERVER", "home,", "KAT_SERVER: `` is not an address"),
            ("KAT_TOKEN", "", "KAT_TOKEN is empty"),
            ("KAT_TOKEN", "{}", "KAT_TOKEN: not a token: expected kat1."),
            ("KAT_CA", "", "KAT_CA is empty"),
            (
                "KAT_CA",
                broken.as_str(),
                "KAT_CA: expected one certificate",
            ),
            ("KAT_CA", "sha256:abc", "KAT_CA: the hash must have 64"),
            (
                "KAT_CA",
                "/nonexistent/ca.pem",
                "KAT_CA: `/nonexistent/ca.pem`: no such file or directory",
            ),
            (
                "KAT_CA",
                "/proc/self/stat",
                "KAT_CA: `/proc/self/stat`: expected one certificate",
            ),
        ] {
            let mut set = good.to_vec();
            set.retain(|(kept, _)| *kept != name);
            set.push((name, value));
            let (error, _) = refused(&set);
            assert!(error.starts_with(expected), "{error}");
        }
        let (error, hint) = refused(&[("KAT_SERVER", "home")]);
        assert_eq!(
            error,
            "KAT_SERVER is set, and KAT_TOKEN is not: the server answers no request without a token"
        );
        assert!(!hint.is_empty());
    }

    #[test]
    fn a_token_without_a_server_is_refused_and_an_authority_has_no_effect() {
        let nothing = variables(&[]);
        assert!(nothing.connection().unwrap().is_none());
        assert_eq!(nothing.without_effect(), None);
        let plain = token().bearer();
        let (error, hint) = refused(&[("KAT_TOKEN", plain.as_str())]);
        assert!(
            error.starts_with("KAT_TOKEN is set, and KAT_SERVER and KAT_CA are not"),
            "{error}"
        );
        assert!(
            !error.contains("kat1") && hint.contains("unset KAT_TOKEN"),
            "{hint}"
        );
        let whole = format!("{plain}.{}", "ab".repeat(32));
        for set in [
            &[("KAT_TOKEN", whole.as_str())][..],
            &[("KAT_TOKEN", plain.as_str()), ("KAT_CA", "ca.pem")][..],
        ] {
            let (error, _) = refused(set);
            assert!(
                error.starts_with("KAT_TOKEN is set, and KAT_SERVER is not"),
                "{error}"
            );
        }
        // A pipeline passes a variable that it does not know as an empty one.
        let authority = variables(&[("KAT_TOKEN", ""), ("KAT_CA", "ca.pem")]);
        assert!(authority.connection().unwrap().is_none());
        assert_eq!(authority.without_effect(), Some("KAT_CA"));
        let server = variables(&[("KAT_SERVER", "home"), ("KAT_CA", "ca.pem")]);
        assert_eq!(server.without_effect(), None);
    }

    #[test]
    fn debug_shows_no_token() {
        let set = variables(&[("KAT_SERVER", "home"), ("KAT_TOKEN", "kat1.x")]);
        assert!(!format!("{set:?}").contains("kat1"));
    }
}
