//! Writes and removes the files of `kat-ingress`, and reads what it says of them.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use super::content::IngressContent;
use kat_host::files::{self, FileAccess, FileError, open_plain};
use kat_types::{
    api::{IngressMeasurements, RouteMeasurements},
    ingress::{
        CERTIFICATES_FILE, CHALLENGES_FILE, FOLDER, INSTANCES, IngressCertificates,
        IngressChallenges, IngressMetrics, IngressRoutes, IngressSettings, IngressStatus,
        IngressUpstreams, MAXIMUM_SIZE, MOST_REFUSED, ROUTES_FILE, RUN_FOLDER, RouteMetrics,
        SETTINGS_FILE, UPSTREAMS_FILE, metrics_file, status_file,
    },
};

/// Largest status file in bytes.
const STATUS_LIMIT: u64 = 1 << 20;

/// The folders of `kat-ingress`.
#[derive(Debug, Clone)]
pub(crate) struct IngressFiles {
    /// [`kat_types::ingress::FOLDER`].
    pub(crate) folder: PathBuf,
    /// [`kat_types::ingress::RUN_FOLDER`].
    pub(crate) run: PathBuf,
    /// Group of `kat-ingress`.
    pub(crate) group: u32,
}

/// A file with a revision that counts its changes.
trait Revised: Clone + PartialEq + Default + Serialize + DeserializeOwned {
    const FILE: &'static str;
    fn revision(&mut self) -> &mut i64;
}

macro_rules! revised {
    ($($type:ident in $file:ident,)*) => {
        $(impl Revised for $type {
            const FILE: &'static str = $file;
            fn revision(&mut self) -> &mut i64 {
                &mut self.revision
            }
        })*
    };
}

revised! {
    IngressSettings in SETTINGS_FILE,
    IngressRoutes in ROUTES_FILE,
    IngressUpstreams in UPSTREAMS_FILE,
    IngressCertificates in CERTIFICATES_FILE,
    IngressChallenges in CHALLENGES_FILE,
}

/// `after` with what only `before` has.
fn joined<T: Clone>(
    before: &BTreeMap<String, T>,
    after: &BTreeMap<String, T>,
) -> BTreeMap<String, T> {
    let mut all = before.clone();
    all.extend(after.iter().map(|(name, one)| (name.clone(), one.clone())));
    all
}

impl IngressFiles {
    /// Those of this machine, of which nothing is written.
    pub(crate) fn to_read() -> Self {
        Self {
            folder: FOLDER.into(),
            run: RUN_FOLDER.into(),
            group: 0,
        }
    }

    /// Writes what is served. Certificates and upstreams come before the routes that need them, and go
    /// after those that needed them. Returns the revision of the challenges' file.
    pub(crate) fn write(&self, content: &IngressContent) -> Result<i64, FileError> {
        files::ensure_folder(&self.folder, FileAccess::owned(0o750, 0, self.group))?;
        let challenges = self.write_one(&content.challenges)?;
        self.write_one(&content.settings)?;
        let before: IngressCertificates = self.read()?;
        self.write_one(&IngressCertificates {
            certificates: joined(&before.certificates, &content.certificates.certificates),
            ..content.certificates.clone()
        })?;
        let before: IngressUpstreams = self.read()?;
        self.write_one(&IngressUpstreams {
            upstreams: joined(&before.upstreams, &content.upstreams.upstreams),
            ..content.upstreams.clone()
        })?;
        self.write_one(&content.routes)?;
        self.write_one(&content.upstreams)?;
        self.write_one(&content.certificates)?;
        Ok(challenges)
    }

    /// Removes the keys. `kat-ingress` keeps those that it has read until it ends.
    pub(crate) fn remove_keys(&self) -> Result<(), FileError> {
        files::remove(&self.folder.join(CERTIFICATES_FILE))?;
        Ok(())
    }

    /// Removes every file, the keys first.
    pub(crate) fn remove(&self) -> Result<(), FileError> {
        for name in [
            CERTIFICATES_FILE,
            ROUTES_FILE,
            UPSTREAMS_FILE,
            SETTINGS_FILE,
            CHALLENGES_FILE,
        ] {
            files::remove(&self.folder.join(name))?;
        }
        Ok(())
    }

    /// Whether an earlier write left routes or keys.
    pub(crate) fn is_written(&self) -> bool {
        let mut names = [ROUTES_FILE, CERTIFICATES_FILE].into_iter();
        names.any(|name| self.folder.join(name).exists())
    }

    /// The file as it was written; empty where there is none, or one that can't be read, which is then
    /// written anew.
    fn read<T: Revised>(&self) -> Result<T, FileError> {
        match files::read_bounded(&self.folder.join(T::FILE), MAXIMUM_SIZE) {
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(error) if error.is_not_found() => Ok(T::default()),
            Err(error) => Err(error),
        }
    }

    /// Writes a file with the next revision, if its content differs. Returns its revision.
    fn write_one<T: Revised>(&self, content: &T) -> Result<i64, FileError> {
        let path = self.folder.join(T::FILE);
        let mut before: T = self.read()?;
        let revision = *before.revision();
        let mut content = content.clone();
        *content.revision() = revision;
        if content != before || !path.exists() {
            *content.revision() = revision.saturating_add(1);
        }
        let text = files::json_of(&path, &content)?;
        let access = FileAccess::owned(0o640, 0, self.group);
        files::write_if_changed(&path, &text, access)?;
        Ok(*content.revision())
    }

    /// What the instance that takes new connections says; `None` while none does. `running` are the
    /// process ids of the instances: another file is a rest of one that was killed. The folder belongs
    /// to another user.
    pub(crate) fn status(&self, running: &[u32]) -> Option<IngressStatus> {
        let read = |instance: &str| {
            let status = read_foreign(&self.run.join(status_file(instance)))?;
            let mut status: IngressStatus = serde_json::from_slice(&status).ok()?;
            status.refused.truncate(MOST_REFUSED);
            running.contains(&status.pid).then_some(status)
        };
        let mut all: Vec<_> = INSTANCES.iter().filter_map(|one| read(one)).collect();
        all.sort_by_key(|status| status.draining);
        all.into_iter().next()
    }

    /// What the running instances of `kat-ingress` count, summed over them, for the routes that this
    /// machine was given and no others; `None` where there are none. The folder belongs to another user.
    pub(crate) fn measured(&self) -> Option<IngressMeasurements> {
        let known: IngressRoutes = self.read().ok()?;
        let read = |instance: &str| -> Option<IngressMetrics> {
            let metrics = read_foreign(&self.run.join(metrics_file(instance)))?;
            serde_json::from_slice(&metrics).ok()
        };
        if known.routes.is_empty() {
            return None;
        }
        let all: Vec<_> = INSTANCES.iter().filter_map(|one| read(one)).collect();
        let sum =
            |of: &dyn Fn(&IngressMetrics) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
        let mut measured = IngressMeasurements {
            connections: sum(&|one| one.connections),
            accepted: sum(&|one| one.accepted),
            limited: sum(&|one| {
                one.limited
                    .values()
                    .fold(0, |sum, next| sum.saturating_add(*next))
            }),
            routes: Vec::new(),
        };
        for (name, route) in &known.routes {
            let mut parts = name.splitn(3, '/');
            let (Some(namespace), Some(workload)) = (parts.next(), parts.next()) else {
                continue;
            };
            let mut one = RouteMeasurements {
                namespace: namespace.to_owned(),
                workload: workload.to_owned(),
                host: route.host.clone(),
                path: route.path.clone(),
                ..RouteMeasurements::default()
            };
            for counted in all.iter().filter_map(|metrics| metrics.routes.get(name)) {
                add_counts(&mut one, counted);
            }
            measured.routes.push(one);
        }
        Some(measured)
    }
}

fn add_counts(one: &mut RouteMeasurements, counted: &RouteMetrics) {
    // Other digits are no status.
    for (class, count) in counted.responses.range(1..=5) {
        let sum = one.responses.entry(format!("{class}xx")).or_default();
        *sum = sum.saturating_add(*count);
    }
    for (sum, count) in [
        (&mut one.upstream_failures, counted.upstream_failures),
        (&mut one.retries, counted.retries),
        (&mut one.active, counted.active),
        (&mut one.received, counted.received),
        (&mut one.sent, counted.sent),
    ] {
        *sum = sum.saturating_add(count);
    }
    one.head_seconds += Duration::from_millis(counted.head_milliseconds).as_secs_f64();
}

/// A file of another user: no link, no pipe, and of bounded length.
fn read_foreign(path: &Path) -> Option<Vec<u8>> {
    let file = open_plain(path).ok()?;
    let mut content = Vec::new();
    let mut bounded = file.take(STATUS_LIMIT);
    bounded.read_to_end(&mut content).ok()?;
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::ingress::{IngressCertificate, IngressRoute, RouteAction};

    fn files_in(folder: &Path) -> IngressFiles {
        IngressFiles {
            folder: folder.join("ingress"),
            run: folder.join("run"),
            group: rustix::process::getgid().as_raw(),
        }
    }

    fn content(host: &str) -> IngressContent {
        let mut content = IngressContent::default();
        let route = IngressRoute::new(host, RouteAction::Maintenance {});
        content.routes.routes.insert(host.to_owned(), route);
        let certificate = IngressCertificate {
            hosts: [host.to_owned()].into(),
            chain: "chain".to_owned(),
            key: "key".to_owned(),
        };
        let certificates = &mut content.certificates.certificates;
        certificates.insert(host.to_owned(), certificate);
        content
    }

    #[test]
    fn a_revision_rises_with_each_change_and_with_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let files = files_in(folder.path());
        assert!(!files.is_written());
        files.write(&content("a.lan")).unwrap();
        files.write(&content("a.lan")).unwrap();
        let routes: IngressRoutes = files.read().unwrap();
        assert_eq!(routes.revision, 1);
        files.write(&content("b.lan")).unwrap();
        let routes: IngressRoutes = files.read().unwrap();
        assert_eq!(routes.revision, 2);
        assert_eq!(routes.routes.keys().collect::<Vec<_>>(), ["b.lan"]);
        // The new one was added before the routes changed, and the old one removed after it.
        let certificates: IngressCertificates = files.read().unwrap();
        assert_eq!(certificates.revision, 3);
        let names: Vec<_> = certificates.certificates.keys().collect();
        assert_eq!(names, ["b.lan"]);
        assert!(files.is_written());
        files.remove().unwrap();
        assert!(!files.is_written());
    }

    #[test]
    fn counters_are_those_of_the_machines_own_routes_and_of_both_instances() {
        let folder = tempfile::tempdir().unwrap();
        let files = files_in(folder.path());
        assert_eq!(files.measured(), None);
        for place in [&files.folder, &files.run] {
            std::fs::create_dir(place).unwrap();
        }
        let routes = r#"{"routes":{"crew/web/a.lan/x":{"host":"a.lan","path":"/x",
            "action":{"maintenance":{}}}}}"#;
        std::fs::write(files.folder.join(ROUTES_FILE), routes).unwrap();
        // What the other user writes: routes of others, a status that is none, and too much.
        let metrics = |sent: u64| {
            format!(
                r#"{{"connections":2,"accepted":{sent},"limited":{{"idle":1}},"routes":{{
                    "crew/web/a.lan/x":{{"responses":{{"2":3,"9":7}},"sent":{sent},"headMilliseconds":1500}},
                    "other/web/b.lan/":{{"sent":1}}}}}}"#
            )
        };
        std::fs::write(files.run.join("metrics-a.json"), metrics(5)).unwrap();
        std::fs::write(files.run.join("metrics-b.json"), metrics(u64::MAX)).unwrap();
        let measured = files.measured().unwrap();
        assert_eq!((measured.connections, measured.accepted), (4, u64::MAX));
        assert_eq!((measured.limited, measured.routes.len()), (2, 1));
        let one = &measured.routes[0];
        assert_eq!((one.namespace.as_str(), one.path.as_str()), ("crew", "/x"));
        assert_eq!((one.sent, one.head_seconds), (u64::MAX, 3.0));
        assert_eq!(one.responses, [("2xx".to_owned(), 6)].into());
        for name in ["metrics-a.json", "metrics-b.json"] {
            std::fs::remove_file(files.run.join(name)).unwrap();
            let elsewhere = files.folder.join(ROUTES_FILE);
            std::os::unix::fs::symlink(&elsewhere, files.run.join(name)).unwrap();
        }
        assert_eq!(files.measured().unwrap().accepted, 0);
    }

    #[test]
    fn a_status_is_no_link_and_of_a_process_that_runs() {
        let folder = tempfile::tempdir().unwrap();
        let files = files_in(folder.path());
        std::fs::create_dir(&files.run).unwrap();
        assert_eq!(files.status(&[7]), None);
        let own = 7;
        let text = |pid: u32, draining: bool| {
            format!(r#"{{"schema":1,"pid":{pid},"draining":{draining}}}"#)
        };
        std::fs::write(files.run.join("status-a.json"), text(own, true)).unwrap();
        std::fs::write(files.run.join("status-b.json"), text(u32::MAX, false)).unwrap();
        assert_eq!(files.status(&[7]).map(|status| status.draining), Some(true));
        std::fs::write(files.run.join("status-b.json"), text(own, false)).unwrap();
        assert_eq!(
            files.status(&[7]).map(|status| status.draining),
            Some(false)
        );
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, text(own, false)).unwrap();
        for name in ["status-a.json", "status-b.json"] {
            std::fs::remove_file(files.run.join(name)).unwrap();
            std::os::unix::fs::symlink(&elsewhere, files.run.join(name)).unwrap();
        }
        assert_eq!(files.status(&[7]), None);
    }
}
