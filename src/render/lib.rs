//! Renders an assignment to the text of its units and environment files, and the files that `init`,
//! `join` and the agent write outside the folders of workload users.
//!
//! Where to begin:
//! - `lib.rs`: [`Renderer`] with its templates, and [`RenderSettings`] with the folders.
//! - `instance_quadlets.rs`: `Renderer::instance`, the quadlets of one instance.
//! - `quote.rs`: how a value passes unchanged through each program that reads a unit.
//! - `unit-templates/instance.container`: the template of a container.
//!
//! Modules:
//! - `instance_quadlets`, `container_order`, `mounts`, `images`: quadlets of instances and pulls.
//! - `environment`: values of variables, kept out of units and command lines.
//! - `host`: etcd's unit, `resolv.conf`, and files of sysusers, tmpfiles and sysctl.
//! - `quote`: filters of the templates.
//!
//! Rules:
//! - The same assignment and settings give the same text: files are only written where they differ,
//!   and a text that differs may restart a container.
//! - No file of the machine is read but templates, in `Renderer::new`. All templates are parsed
//!   there, so that a bad one fails at once. Rendering itself does no input or output.
//! - A text that a user can choose passes a filter of `quote`, which rejects what it cannot write.
//! - Every quadlet and every unit has [`MARK`] (invariant 6).
//! - A field without an effect is an error and is not left out silently.
//! - The crate uses `kat-types` alone. It writes no file, and knows no systemd.
//!
//! Tests: goldens in `tests/render`, which `tests/render/check-with-podman` gives to Podman's
//! generator; `src/render/tests.rs` and `quote/tests.rs` beside the code.

mod container_order;
mod environment;
mod host;
mod images;
mod instance_quadlets;
mod mounts;
pub mod quote;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use tera::{Kwargs, State, Tera, TeraResult};

use kat_types::assignment::Assignment;

pub use crate::instance_quadlets::VALUE_SUFFIX;
pub use environment::{EnvironmentError, EnvironmentFiles, environment_files};
pub use host::{ETCD_FOLDER, ETCD_QUOTA, ETCD_USER, EtcdUnit, HostFile, NameSearch};
pub use images::pull_policy;

/// Folder of templates that an administrator may change; they replace the compiled-in ones.
pub const TEMPLATES_FOLDER: &str = "/usr/share/kat/unit-templates";
/// Section that marks KAT's files; systemd ignores sections that begin with `X-`.
pub const MARK: &str = "[X-KAT]";

/// The templates, by name and compiled-in text.
const TEMPLATES: [(&str, &str); 12] = [
    ("hook.json", include_str!("../../unit-templates/hook.json")),
    (
        "image.image",
        include_str!("../../unit-templates/image.image"),
    ),
    (
        "instance.container",
        include_str!("../../unit-templates/instance.container"),
    ),
    (
        "instance.timer",
        include_str!("../../unit-templates/instance.timer"),
    ),
    (
        "journald.conf",
        include_str!("../../unit-templates/journald.conf"),
    ),
    (
        "kat-etcd.service",
        include_str!("../../unit-templates/kat-etcd.service"),
    ),
    (
        "network.container",
        include_str!("../../unit-templates/network.container"),
    ),
    (
        "resolv.conf",
        include_str!("../../unit-templates/resolv.conf"),
    ),
    (
        "sysctl.conf",
        include_str!("../../unit-templates/sysctl.conf"),
    ),
    (
        "sysusers.conf",
        include_str!("../../unit-templates/sysusers.conf"),
    ),
    (
        "tmpfiles.conf",
        include_str!("../../unit-templates/tmpfiles.conf"),
    ),
    (
        "user-delegate.conf",
        include_str!("../../unit-templates/user-delegate.conf"),
    ),
];

/// Why something could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A template can't be read.
    #[error("template {path}: {source}")]
    Read {
        /// Path of the template.
        path: PathBuf,
        source: std::io::Error,
    },
    /// A template is invalid, or a value can't be written at its place.
    #[error("template {template}: {source}")]
    Template {
        /// Name of the template.
        template: String,
        /// The error of Tera or a filter, with line and column.
        source: tera::Error,
    },
    /// A container requests a GPU, and the assignment does not name one.
    #[error("{instance}: container.resources.gpu: the leader assigned no GPU of this machine")]
    NoGpu {
        /// The instance.
        instance: String,
    },
    /// The source of a mount is not known.
    #[error("{instance}: container.volumeMounts: nothing is known of volume {volume}")]
    Mount {
        /// The instance.
        instance: String,
        /// Name of the volume.
        volume: String,
    },
    /// A variable can't be passed to the container.
    #[error("{instance}: container.env: {source}")]
    Environment {
        /// The instance.
        instance: String,
        source: EnvironmentError,
    },
    /// Podman's generator would misinterpret the image reference.
    #[error("{instance}: `{image}` can't be the image of a quadlet: {reason}")]
    Image {
        /// The instance.
        instance: String,
        /// The reference.
        image: String,
        reason: &'static str,
    },
}

/// Settings that all instances of a machine share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderSettings {
    /// Folder of the users' unit files, with one folder for each uid.
    pub units_folder: PathBuf,
    /// Folder of the containers' resolv.conf files, `<namespace>.conf`.
    pub resolv_folder: PathBuf,
    /// KAT's own folder of OCI hooks.
    pub hooks_folder: PathBuf,
    /// Program of the container hook.
    pub hook_program: PathBuf,
    /// Folder of simple cluster storage.
    pub volumes_folder: PathBuf,
    /// Folder of host paths that are bound before an instance starts, with one folder for each uid.
    pub bound_folder: PathBuf,
    /// Folder of files from workloads' folders that containers mount, with one folder for each uid.
    pub carried_folder: PathBuf,
    /// Root file system of the containers that hold networks: folders and links into the machine's
    /// `/usr`.
    pub holder_folder: PathBuf,
    /// Folder of the files of secrets, with one folder for each uid.
    pub secrets_folder: PathBuf,
    /// Folder of Podman's files with registry credentials, one file for each uid.
    pub auth_folder: PathBuf,
    /// Folder of the files of runs, with one folder for each uid.
    pub runs_folder: PathBuf,
    /// Longest time that the hook holds an unconfirmed start, in seconds.
    pub hold_seconds: u32,
    /// Longest time of a pull, in seconds.
    pub pull_seconds: u32,
}

impl Default for RenderSettings {
    fn default() -> Self {
        Self {
            units_folder: "/var/lib/kat/units".into(),
            resolv_folder: "/var/lib/kat/resolv".into(),
            hooks_folder: "/var/lib/kat/hooks.d".into(),
            hook_program: kat_types::machine::network::HOOK_PROGRAM.into(),
            volumes_folder: "/var/lib/kat/volumes".into(),
            bound_folder: kat_types::assignment::BOUND_FOLDER.into(),
            carried_folder: "/var/lib/kat/files".into(),
            holder_folder: "/var/lib/kat/holder".into(),
            secrets_folder: "/var/lib/kat/secrets".into(),
            auth_folder: "/run/kat/auth".into(),
            runs_folder: "/var/lib/kat/job-runs".into(),
            hold_seconds: 60,
            pull_seconds: 3600,
        }
    }
}

impl RenderSettings {
    /// Folder of a user's unit files: owner root, group of the user, 0750.
    pub fn user_folder(&self, uid: u32) -> PathBuf {
        self.units_folder.join(uid.to_string())
    }

    /// Folder of an instance's secrets, with one folder for each secret.
    pub fn secrets_of(&self, assignment: &Assignment) -> PathBuf {
        let uid = assignment.user.uid.to_string();
        self.secrets_folder.join(uid).join(&assignment.instance)
    }

    /// Podman's file with the registry credentials of a user's pulls: owner root, group of the
    /// user, 0640.
    pub fn auth_file(&self, uid: u32) -> PathBuf {
        self.auth_folder.join(format!("{uid}.json"))
    }

    /// The file of the runs that an instance's machine begins by itself: owner root, group of the user,
    /// 0660.
    pub fn runs_file(&self, uid: u32, instance: &str) -> PathBuf {
        self.runs_folder.join(uid.to_string()).join(instance)
    }

    /// The resolv.conf of a namespace's containers.
    pub fn resolv_file(&self, namespace: &str) -> PathBuf {
        self.resolv_folder.join(format!("{namespace}.conf"))
    }

    /// The JSON that makes podman run the hook (oci-hooks(5)).
    pub fn hook_file(&self) -> PathBuf {
        self.hooks_folder.join("kat.json")
    }
}

/// The kind of a rendered file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitFileKind {
    /// A `.container` or `.image`: linked into `/etc/containers/systemd/users/UID`.
    Quadlet,
    /// Values of variables; only the unit refers to it, by its absolute path.
    Environment,
}

/// A file of [`RenderSettings::user_folder`]: owner root, group of the user, 0640, since it may
/// contain values of variables.
#[derive(Clone, PartialEq, Eq)]
pub struct UnitFile {
    pub name: String,
    pub text: String,
    pub kind: UnitFileKind,
}

impl UnitFile {
    /// The service that Podman's generator makes from the file (podman-systemd.unit(5)):
    /// `a.container` becomes `a.service`, `a.image` becomes `a-image.service`.
    pub fn service(&self) -> Option<String> {
        if let Some(stem) = self.name.strip_suffix(".container") {
            return Some(format!("{stem}.service"));
        }
        let stem = self.name.strip_suffix(".image")?;
        Some(format!("{stem}-image.service"))
    }
}

/// Does not show the text, since it may contain values of variables.
impl fmt::Debug for UnitFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UnitFile")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Renders units from the templates.
#[derive(Debug)]
pub struct Renderer {
    templates: Tera,
}

impl Renderer {
    /// Parses every template: those of `folder` where it has them, otherwise the compiled-in ones.
    pub fn new(folder: Option<&Path>) -> Result<Self, RenderError> {
        let mut templates = Tera::new();
        register_filters(&mut templates);
        for (name, compiled) in TEMPLATES {
            let text = match folder {
                Some(folder) => read_template(&folder.join(name))?,
                None => None,
            };
            templates
                .add_raw_template(name, text.as_deref().unwrap_or(compiled))
                .map_err(|source| RenderError::Template {
                    template: name.to_owned(),
                    source,
                })?;
        }
        Ok(Self { templates })
    }

    /// Uses [`TEMPLATES_FOLDER`] if it exists, otherwise the compiled-in templates.
    pub fn installed() -> Result<Self, RenderError> {
        let folder = Path::new(TEMPLATES_FOLDER);
        Self::new(folder.is_dir().then_some(folder))
    }

    fn render<T: serde::Serialize>(&self, name: &str, values: &T) -> Result<String, RenderError> {
        tera::Context::from_serialize(values)
            .and_then(|context| self.templates.render(name, &context))
            .map_err(|source| RenderError::Template {
                template: name.to_owned(),
                source,
            })
    }
}

fn read_template(path: &Path) -> Result<Option<String>, RenderError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RenderError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn register_filters(templates: &mut Tera) {
    type Quote = fn(&str) -> Result<String, quote::QuoteError>;
    type QuoteList = fn(&[String]) -> Result<String, quote::QuoteError>;
    let filters: [(&str, Quote); 5] = [
        ("plain", quote::plain),
        ("value", quote::value),
        ("word", quote::word),
        ("setting", quote::setting),
        ("token", quote::token),
    ];
    for (name, filter) in filters {
        templates.register_filter(name, move |text: &str, _: Kwargs, _: &State| {
            filter(text).map_err(tera::Error::message)
        });
    }
    let list_filters: [(&str, QuoteList); 2] =
        [("json", quote::json), ("arguments", quote::arguments)];
    for (name, filter) in list_filters {
        templates.register_filter(name, move |words: Vec<String>, _: Kwargs, _: &State| {
            filter(&words).map_err(tera::Error::message)
        });
    }
    templates.register_filter(
        "json_string",
        |text: &str, _: Kwargs, _: &State| -> TeraResult<String> {
            kat_types::encoding::json::text("a word of a unit", text).map_err(tera::Error::message)
        },
    );
}

#[cfg(test)]
mod tests;
