//! Reads the agent's files at the start and whenever they change.
//!
//! For a file that is missing, unreadable or malformed the last valid content is kept. A bad route,
//! upstream or certificate drops only itself. The place of a bad route is answered with 503, and for
//! a bad certificate the one before is served. All are in the status.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use ipnet::Ipv4Net;
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Config,
    certificates::CertificateTable,
    routes::{RoutePlace, RoutingTable},
};
use crate::{
    metrics::Metrics,
    upstream::{Instance, InstanceRegistry, StickyKey, Upstream, sticky_cookie},
};
use kat_daemon::folder_watch;
use kat_types::{
    ingress::{
        CERTIFICATES_FILE, CHALLENGES_FILE, IngressCertificate, IngressChallenges,
        IngressRevisions, IngressRoute, IngressSettings, IngressUpstream, MAXIMUM_SIZE,
        MOST_REFUSED, ROUTES_FILE, RefusedPart, SETTINGS_FILE, UPSTREAMS_FILE,
    },
    machine::network::SilentPeers,
};

/// Longest reason in a status, in bytes.
const LONGEST_REASON: usize = 300;
/// Longest token and longest key authorization of a challenge.
const LONGEST_CHALLENGE: (usize, usize) = (128, 512);

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("it is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("it has no field `schema`")]
    NoSchema,
    #[error("it is larger than {MAXIMUM_SIZE} bytes")]
    TooLarge,
}

/// A file of named entries, each of which is read by itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entries {
    revision: i64,
    #[serde(alias = "routes", alias = "upstreams", alias = "certificates")]
    entries: BTreeMap<String, Value>,
}

/// Device, inode, size and time of the last change: identifies a version of a file.
type FileStamp = (u64, u64, u64, i64, i64);

/// A file with its last valid content.
#[derive(Debug, Default)]
struct TrackedFile<T> {
    stamp: Option<FileStamp>,
    content: T,
    /// Why its newest version is not the content.
    error: Option<String>,
    /// Parts of the content that can't be used.
    refused: Vec<(String, String)>,
}

impl<T> TrackedFile<T> {
    /// Reads a newer version; true if something has changed.
    fn refresh<R: DeserializeOwned>(
        &mut self,
        path: &Path,
        build: impl FnOnce(R, &mut Vec<(String, String)>) -> T,
    ) -> bool {
        let Ok(status) = fs::metadata(path) else {
            return false;
        };
        let stamp = (
            status.dev(),
            status.ino(),
            status.size(),
            status.mtime(),
            status.mtime_nsec(),
        );
        if self.stamp == Some(stamp) {
            return false;
        }
        self.stamp = Some(stamp);
        match read::<R>(path) {
            Ok(read) => {
                self.refused.clear();
                self.content = build(read, &mut self.refused);
                self.error = None;
                for (name, reason) in self.refused.iter().take(MOST_REFUSED) {
                    tracing::warn!(file = %path.display(), name, reason, "not served");
                }
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "what it said before is still served");
                self.error = Some(error.to_string());
            }
        }
        true
    }

    fn add_refused(&self, file: &str, all: &mut Vec<RefusedPart>) {
        let whole = self
            .error
            .iter()
            .map(|error| (String::new(), error.clone()));
        for (name, reason) in whole.chain(self.refused.iter().cloned()) {
            if all.len() >= MOST_REFUSED {
                return;
            }
            let mut reason = reason;
            reason.truncate(reason.floor_char_boundary(LONGEST_REASON));
            all.push(RefusedPart {
                file: file.to_owned(),
                name,
                reason,
            });
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    let file = fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.take(MAXIMUM_SIZE + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAXIMUM_SIZE {
        return Err(FileError::TooLarge);
    }
    // A list would be taken for an object without fields.
    let fields: serde_json::Map<String, Value> = serde_json::from_slice(&bytes)?;
    if !fields.contains_key("schema") {
        return Err(FileError::NoSchema);
    }
    Ok(serde_json::from_value(Value::Object(fields))?)
}

/// A part of the configuration with its revision.
type Revised<T> = (i64, T);

#[derive(Debug, Default)]
struct FileContents {
    settings: TrackedFile<IngressSettings>,
    routes: TrackedFile<Revised<Arc<RoutingTable>>>,
    upstreams: TrackedFile<Revised<BTreeMap<String, IngressUpstream>>>,
    certificates: TrackedFile<Revised<Arc<CertificateTable>>>,
    challenges: TrackedFile<Revised<Arc<BTreeMap<String, String>>>>,
    silent: TrackedFile<Vec<Ipv4Net>>,
    instances: InstanceRegistry,
}

/// The files, with what they say.
pub struct ConfigFiles {
    folder: PathBuf,
    /// Peers that do not answer; written by `kat-net`.
    silent_peers: PathBuf,
    metrics: Arc<Metrics>,
    /// Key of cookies while the settings have none.
    own_sticky_key: StickyKey,
    contents: Mutex<FileContents>,
    current: Arc<ArcSwap<Config>>,
    changed: watch::Sender<()>,
}

impl ConfigFiles {
    /// Reads the files once.
    pub fn open(folder: &Path, silent_peers: &Path, metrics: Arc<Metrics>) -> Arc<Self> {
        let files = Self {
            folder: folder.to_owned(),
            silent_peers: silent_peers.to_owned(),
            metrics,
            own_sticky_key: rand::random(),
            contents: Mutex::default(),
            current: Arc::default(),
            changed: watch::Sender::default(),
        };
        files.refresh();
        Arc::new(files)
    }

    /// What is served now.
    pub fn current(&self) -> Arc<ArcSwap<Config>> {
        Arc::clone(&self.current)
    }

    /// Tells of each change.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Follows the files until cancelled.
    pub async fn watch(self: Arc<Self>, cancel: CancellationToken) {
        let own = folder_watch::follow(&self.folder, || self.refresh(), cancel.clone());
        let run = self.silent_peers.parent().unwrap_or(Path::new("/run/kat"));
        let peers = folder_watch::follow(run, || self.refresh(), cancel);
        tokio::join!(own, peers);
    }

    /// Reads the files that have changed since the last call. Cheap when there are none.
    pub fn refresh(&self) {
        let mut guard = self.contents.lock();
        let contents = &mut *guard;
        let path = |name: &str| self.folder.join(name);
        let certificates = Arc::clone(&contents.certificates.content.1);
        let changes = [
            contents
                .settings
                .refresh(&path(SETTINGS_FILE), |read: IngressSettings, _| read),
            contents
                .routes
                .refresh(&path(ROUTES_FILE), |read, refused| {
                    self.read_routes(read, refused)
                }),
            contents
                .upstreams
                .refresh(&path(UPSTREAMS_FILE), read_upstreams),
            contents
                .certificates
                .refresh(&path(CERTIFICATES_FILE), |read, refused| {
                    read_certificates(read, &certificates, refused)
                }),
            contents
                .challenges
                .refresh(&path(CHALLENGES_FILE), read_challenges),
            contents
                .silent
                .refresh(&self.silent_peers, |read: SilentPeers, _| {
                    read.subnets.into_values().collect()
                }),
        ];
        if !changes.contains(&true) {
            return;
        }
        let composed = compose(contents, &self.own_sticky_key);
        self.current.store(Arc::new(composed));
        self.changed.send_replace(());
    }

    fn read_routes(
        &self,
        read: Entries,
        refused: &mut Vec<(String, String)>,
    ) -> Revised<Arc<RoutingTable>> {
        let mut table = RoutingTable::default();
        self.metrics
            .keep_routes(|name| read.entries.contains_key(name));
        for (name, value) in read.entries {
            let route = IngressRoute::deserialize(&value).map_err(malformed);
            let added = route.and_then(|route| {
                let added = table.add(&name, &route, &self.metrics);
                added.map_err(|error| error.to_string())
            });
            match added {
                Ok(sentences) => {
                    refused.extend(sentences.into_iter().map(|text| (name.clone(), text)));
                }
                Err(reason) => {
                    if let Some(place) = RoutePlace::read(&value) {
                        table.refuse(&name, place, &self.metrics);
                    }
                    refused.push((name, reason));
                }
            }
        }
        (read.revision, Arc::new(table))
    }
}

fn malformed(error: serde_json::Error) -> String {
    format!("it is malformed: {error}")
}

fn entry<T: DeserializeOwned>(
    name: &str,
    value: Value,
    refused: &mut Vec<(String, String)>,
) -> Option<T> {
    let read = serde_json::from_value(value);
    read.map_err(|error| refused.push((name.to_owned(), malformed(error))))
        .ok()
}

fn read_upstreams(
    read: Entries,
    refused: &mut Vec<(String, String)>,
) -> Revised<BTreeMap<String, IngressUpstream>> {
    let entries = read.entries.into_iter();
    let upstreams = entries.filter_map(|(name, value)| {
        let upstream = entry(&name, value, refused)?;
        Some((name, upstream))
    });
    (read.revision, upstreams.collect())
}

/// Instead of a certificate that can't be used, the one that was served under its name before still
/// is.
fn read_certificates(
    read: Entries,
    earlier: &CertificateTable,
    refused: &mut Vec<(String, String)>,
) -> Revised<Arc<CertificateTable>> {
    let mut table = CertificateTable::default();
    for (name, value) in read.entries {
        let certificate = serde_json::from_value::<IngressCertificate>(value);
        let hosts = certificate.as_ref().ok().map(|read| read.hosts.clone());
        let added = certificate.map_err(malformed).and_then(|certificate| {
            let added = table.add(&name, &certificate);
            added.map_err(|error| error.to_string())
        });
        if let Err(mut reason) = added {
            if table.keep(&name, earlier, hosts.as_ref()) {
                reason.push_str("; the one before is still served");
            }
            refused.push((name, reason));
        }
    }
    (read.revision, Arc::new(table))
}

fn read_challenges(
    read: IngressChallenges,
    refused: &mut Vec<(String, String)>,
) -> Revised<Arc<BTreeMap<String, String>>> {
    let mut tokens = read.tokens;
    tokens.retain(|token, answer| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_valid = (1..=LONGEST_CHALLENGE.0).contains(&token.len())
            && (1..=LONGEST_CHALLENGE.1).contains(&answer.len())
            && token.bytes().chain(answer.bytes()).all(is_plain);
        if !is_valid {
            let name = token.chars().take(LONGEST_CHALLENGE.0).collect();
            refused.push((name, "it is no challenge".to_owned()));
        }
        is_valid
    });
    (read.revision, Arc::new(tokens))
}

fn sticky_key(text: &str) -> Option<StickyKey> {
    hex::decode(text).ok()?.try_into().ok()
}

fn compose(contents: &mut FileContents, own_sticky_key: &StickyKey) -> Config {
    let settings = &contents.settings.content;
    let sticky_key = sticky_key(&settings.sticky_key).unwrap_or(*own_sticky_key);
    let silent = &contents.silent.content;
    let is_silent = |address: SocketAddr| match address.ip() {
        std::net::IpAddr::V4(address) => silent.iter().any(|subnet| subnet.contains(&address)),
        std::net::IpAddr::V6(_) => false,
    };
    let (_, upstreams) = &contents.upstreams.content;
    let mut registry = std::mem::take(&mut contents.instances);
    let upstreams = upstreams.iter().map(|(name, upstream)| {
        let instances = upstream.instances.iter().map(|(name, instance)| {
            let address = SocketAddr::new(instance.address, instance.port);
            Instance {
                name: name.clone(),
                address,
                is_local: !settings.node.is_empty() && instance.machine == settings.node,
                is_silent: is_silent(address),
                state: instance.state,
                live: registry.get(address),
                cookie: sticky_cookie(&sticky_key, name, address),
            }
        });
        (name.clone(), Upstream::new(instances.collect()))
    });
    let upstreams: BTreeMap<String, Upstream> = upstreams.collect();
    registry.forget_others(upstreams.values());
    contents.instances = registry;
    let mut refused = Vec::new();
    contents.settings.add_refused(SETTINGS_FILE, &mut refused);
    contents.routes.add_refused(ROUTES_FILE, &mut refused);
    contents.upstreams.add_refused(UPSTREAMS_FILE, &mut refused);
    contents
        .certificates
        .add_refused(CERTIFICATES_FILE, &mut refused);
    contents
        .challenges
        .add_refused(CHALLENGES_FILE, &mut refused);
    Config {
        trusted_proxies: settings.trusted_proxies.clone(),
        proxy_protocol_from: settings.proxy_protocol_from.clone(),
        access_log: settings.access_log,
        table: Arc::clone(&contents.routes.content.1),
        upstreams,
        certificates: Arc::clone(&contents.certificates.content.1),
        challenges: Arc::clone(&contents.challenges.content.1),
        revisions: IngressRevisions {
            settings: settings.revision,
            routes: contents.routes.content.0,
            upstreams: contents.upstreams.content.0,
            certificates: contents.certificates.content.0,
            challenges: contents.challenges.content.0,
        },
        refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::routes::{HostMatch, ParsedAction};

    fn write(folder: &Path, name: &str, text: &str) {
        let partial = folder.join(format!(".{name}"));
        fs::write(&partial, text).unwrap();
        fs::rename(partial, folder.join(name)).unwrap();
    }

    fn open(folder: &Path) -> Arc<ConfigFiles> {
        ConfigFiles::open(folder, &folder.join("silent.json"), Arc::default())
    }

    fn has_host(files: &ConfigFiles, host: &str) -> bool {
        let config = files.current().load_full();
        matches!(config.table.host(host), Some(HostMatch::Routes(_)))
    }

    const ROUTE: &str = r#"{"host":"HOST","action":{"maintenance":{}}}"#;

    fn routes(revision: i64, entries: &[(&str, &str)]) -> String {
        let entries = entries
            .iter()
            .map(|(name, text)| format!("\"{name}\":{text}"));
        let entries: Vec<String> = entries.collect();
        format!(
            "{{\"schema\":1,\"revision\":{revision},\"routes\":{{{}}}}}",
            entries.join(",")
        )
    }

    #[test]
    fn a_bad_route_drops_itself_and_a_bad_file_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let good = ROUTE.replace("HOST", "good.example");
        let bad = ROUTE.replace("HOST", "Bad.example");
        let newer = r#"{"host":"new.example","action":{"teleport":{}}}"#;
        let text = routes(7, &[("a", &good), ("b", &bad), ("c", newer)]);
        write(folder.path(), ROUTES_FILE, &text);
        let files = open(folder.path());
        let config = files.current().load_full();
        assert!(has_host(&files, "good.example"));
        for host in ["bad.example", "new.example"] {
            let Some(HostMatch::Routes(routes)) = config.table.host(host) else {
                panic!("{host} is not closed");
            };
            let route = routes.find("/x").unwrap().unwrap();
            assert_eq!(route.action, ParsedAction::Refused, "{host}");
        }
        assert_eq!(config.revisions.routes, 7);
        let refused: Vec<&str> = config
            .refused
            .iter()
            .map(|part| part.name.as_str())
            .collect();
        assert_eq!(refused, ["b", "c"]);
        assert!(
            config.refused[0].reason.contains("Bad.example"),
            "{config:?}"
        );
        for broken in ["", "[]", "{}", "{\"revision\":8,\"routes\":{"] {
            write(folder.path(), ROUTES_FILE, broken);
            files.refresh();
            let config = files.current().load_full();
            assert!(has_host(&files, "good.example"));
            assert_eq!(config.revisions.routes, 7);
            assert_eq!(config.refused[0].name, "");
            assert_eq!(config.refused[0].file, ROUTES_FILE);
        }
        fs::remove_file(folder.path().join(ROUTES_FILE)).unwrap();
        files.refresh();
        assert!(has_host(&files, "good.example"));
        write(folder.path(), ROUTES_FILE, &routes(9, &[]));
        files.refresh();
        let config = files.current().load_full();
        assert!(!has_host(&files, "good.example"));
        assert_eq!(config.refused, []);
        assert_eq!(config.revisions.routes, 9);
    }

    #[test]
    fn a_certificate_that_cannot_be_used_leaves_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        let other = rcgen::KeyPair::generate().unwrap();
        let entry = |host: &str, key: &str| serde_json::json!({"hosts": [host], "chain": made.cert.pem(), "key": key});
        let good = made.signing_key.serialize_pem();
        let all = serde_json::json!({"schema": 1, "revision": 3, "certificates": {
            "good": entry("a.example", &good),
            "late": entry("a.example", &good),
            "mismatch": entry("b.example", &other.serialize_pem()),
            "rubbish": entry("c.example", "key"),
            "wild": entry("*.w.example", &good),
        }});
        write(folder.path(), CERTIFICATES_FILE, &all.to_string());
        let files = open(folder.path());
        let config = files.current().load_full();
        assert!(config.certificates.find("a.example").is_some());
        assert!(config.certificates.find("x.w.example").is_some());
        for host in ["b.example", "c.example", "w.example", "x.y.w.example"] {
            assert!(config.certificates.find(host).is_none(), "{host}");
        }
        let refused: Vec<&str> = config
            .refused
            .iter()
            .map(|part| part.name.as_str())
            .collect();
        assert_eq!(refused, ["mismatch", "rubbish"]);
        let text = format!("{:?}", config.certificates);
        assert!(!text.contains("PRIVATE"), "{text}");
    }

    #[test]
    fn a_good_certificate_is_not_replaced_by_a_bad_one() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        let good = made.signing_key.serialize_pem();
        let entry = |hosts: &[&str], key: &str| serde_json::json!({"hosts": hosts, "chain": made.cert.pem(), "key": key});
        let files = open(folder.path());
        let mut revision = 0;
        let mut serves = |entry: serde_json::Value| {
            revision += 1;
            let all = serde_json::json!({"schema": 1, "revision": revision, "certificates": entry});
            write(folder.path(), CERTIFICATES_FILE, &all.to_string());
            files.refresh();
            let config = files.current().load_full();
            let served = ["a.example", "b.example"].map(|host| config.certificates.find(host));
            (served.map(|key| key.is_some()), config.refused.clone())
        };
        let both = entry(&["a.example", "b.example"], &good);
        let (served, refused) = serves(serde_json::json!({"web": both}));
        assert_eq!((served, refused.len()), ([true, true], 0));
        // Twice, so that what was kept is kept again.
        for _ in 0..2 {
            let bad = entry(&["a.example", "b.example"], "rubbish");
            let (served, refused) = serves(serde_json::json!({"web": bad}));
            assert_eq!((served, refused.len()), ([true, true], 1));
            assert!(
                refused[0]
                    .reason
                    .ends_with("the one before is still served"),
                "{refused:?}"
            );
        }
        let (served, _) = serves(serde_json::json!({"web": 7}));
        assert_eq!(served, [true, true]);
        // A host that is no longer its own is gone.
        let (served, _) = serves(serde_json::json!({"web": entry(&["a.example"], "rubbish")}));
        assert_eq!(served, [true, false]);
        // Another name has no earlier one, and a name that is gone is forgotten.
        let bad = entry(&["a.example"], "rubbish");
        let (served, refused) = serves(serde_json::json!({"other": bad}));
        assert_eq!((served, refused.len()), ([false, false], 1));
    }

    #[test]
    fn an_instance_keeps_its_counters_and_follows_its_state_and_silence() {
        let folder = tempfile::tempdir().unwrap();
        let upstreams = |state: &str| {
            format!(
                r#"{{"schema":1,"revision":1,"upstreams":{{"u":{{"instances":{{"web-1":{{"address":"10.1.2.3","port":80,"machine":"n1","state":"{state}"}}}}}}}}}}"#
            )
        };
        write(
            folder.path(),
            SETTINGS_FILE,
            r#"{"schema":1,"revision":2,"node":"n1"}"#,
        );
        write(folder.path(), UPSTREAMS_FILE, &upstreams("serving"));
        let files = open(folder.path());
        let instance = || {
            let config = files.current().load_full();
            config.upstreams["u"].instances()[0].clone()
        };
        let first = instance();
        assert!(first.is_local && !first.is_silent);
        write(
            folder.path(),
            "silent.json",
            r#"{"schema":1,"subnets":{"n1":"10.1.2.0/24"}}"#,
        );
        files.refresh();
        assert!(instance().is_silent);
        write(folder.path(), UPSTREAMS_FILE, &upstreams("leaving"));
        files.refresh();
        assert_eq!(instance().state, kat_types::services::BackendState::Leaving);
        assert!(Arc::ptr_eq(&first.live, &instance().live));
        // A state of a newer version gets no traffic.
        write(folder.path(), UPSTREAMS_FILE, &upstreams("resting"));
        files.refresh();
        assert_eq!(instance().state, kat_types::services::BackendState::Held);
    }

    #[test]
    fn cookies_are_the_same_on_all_machines_that_have_the_key() {
        let cookie = |key: &str| {
            let folder = tempfile::tempdir().unwrap();
            let settings = format!(r#"{{"schema":1,"revision":1,"stickyKey":"{key}"}}"#);
            write(folder.path(), SETTINGS_FILE, &settings);
            let upstreams = r#"{"schema":1,"upstreams":{"u":{"instances":{"web-1":{"address":"10.1.2.3","port":80,"state":"serving"}}}}}"#;
            write(folder.path(), UPSTREAMS_FILE, upstreams);
            let config = open(folder.path()).current().load_full();
            config.upstreams["u"].instances()[0].cookie.clone()
        };
        let key = "0a".repeat(32);
        assert_eq!(cookie(&key), cookie(&key));
        assert_ne!(cookie(&key), cookie(&"0b".repeat(32)));
        // Without one each process has its own.
        for none in ["", "0a", "xx"] {
            assert_ne!(cookie(none), cookie(none), "{none}");
        }
    }

    #[test]
    fn challenges_are_tokens_alone() {
        let folder = tempfile::tempdir().unwrap();
        let text =
            r#"{"schema":1,"revision":4,"tokens":{"abc_-1":"abc_-1.xyz","../x":"y","e":""}}"#;
        write(folder.path(), CHALLENGES_FILE, text);
        let config = open(folder.path()).current().load_full();
        assert_eq!(config.challenges.keys().collect::<Vec<_>>(), ["abc_-1"]);
        assert_eq!(config.revisions.challenges, 4);
        assert_eq!(config.refused.len(), 2);
    }
}
