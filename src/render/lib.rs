//! From an assignment to the text of its units.
//!
//! The templates of `unit-templates/` are compiled in; a folder of the same files may stand in
//! for them. They are all read when a [`Renderer`] is made, so that a template that names an
//! unknown filter fails there and not on a machine at night. Rendering does no input or output.

mod containers;
mod environment;
mod host;
mod images;
mod instance;
mod mounts;
pub mod quote;

use std::{
    fmt,
    path::{Path, PathBuf},
};

pub use environment::{EnvironmentError, EnvironmentFiles, environment_files};
pub use host::{ETCD_FOLDER, ETCD_QUOTA, ETCD_USER, EtcdUnit, HostFile};
pub use images::pull_policy;
pub use instance::VALUE_SUFFIX;
use kat_types::assignment::Assignment;
use tera::{Kwargs, State, Tera, TeraResult};

/// Folder of templates that an administrator may change; it stands in for the compiled-in ones.
pub const TEMPLATES_FOLDER: &str = "/usr/share/kat/unit-templates";
/// Section that marks what KAT owns; systemd ignores sections that begin with `X-`.
pub const MARK: &str = "[X-KAT]";

/// The templates, by name and compiled-in text.
const TEMPLATES: [(&str, &str); 11] = [
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
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A template is wrong, or a value does not fit where it stands.
    #[error("template {template}: {source}")]
    Template {
        /// Name of the template.
        template: String,
        /// What Tera or a filter said, with line and column.
        source: tera::Error,
    },
    /// The assignment asks for something that has no effect yet.
    #[error("{instance}: container.{field} has no effect yet")]
    NotYet {
        /// The instance.
        instance: String,
        /// The field, as in `workload.kat`.
        field: &'static str,
    },
    /// Nothing is known of what a mount mounts.
    #[error("{instance}: container.volumeMounts: nothing is known of volume {volume}")]
    Mount {
        /// The instance.
        instance: String,
        /// Name of the volume.
        volume: String,
    },
    /// A variable can't be handed to the container.
    #[error("{instance}: container.env: {source}")]
    Environment {
        /// The instance.
        instance: String,
        /// Which variable, and why.
        source: EnvironmentError,
    },
    /// Podman's generator would take this for something else.
    #[error("{instance}: `{image}` can't be the image of a quadlet: {reason}")]
    Image {
        /// The instance.
        instance: String,
        /// The reference.
        image: String,
        /// Why not.
        reason: &'static str,
    },
}

/// What is the same for every instance of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderSettings {
    /// Folder with one folder for each uid: the unit files of that user.
    pub units_folder: PathBuf,
    /// Folder of `<namespace>.conf`, the containers' resolv.conf.
    pub resolv_folder: PathBuf,
    /// KAT's own folder of OCI hooks.
    pub hooks_folder: PathBuf,
    /// Program of the container hook.
    pub hook_program: PathBuf,
    /// Folder below which simple cluster storage lies.
    pub volumes_folder: PathBuf,
    /// Folder with one folder for each uid: paths of the machine, bound before an instance starts.
    pub bound_folder: PathBuf,
    /// Folder with one folder for each uid: what its containers mount of the workload's own folder.
    pub carried_folder: PathBuf,
    /// Root of the containers that hold networks: folders and links into the machine's `/usr`.
    pub holder_folder: PathBuf,
    /// Folder of the files of secrets, with one folder for each uid.
    pub secrets_folder: PathBuf,
    /// Folder of Podman's files with credentials for registries, one for each uid.
    pub auth_folder: PathBuf,
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
            hook_program: kat_types::network::HOOK_PROGRAM.into(),
            volumes_folder: "/var/lib/kat/volumes".into(),
            bound_folder: kat_types::assignment::BOUND_FOLDER.into(),
            carried_folder: "/var/lib/kat/files".into(),
            holder_folder: "/var/lib/kat/holder".into(),
            secrets_folder: "/var/lib/kat/secrets".into(),
            auth_folder: "/run/kat/auth".into(),
            hold_seconds: 60,
            pull_seconds: 3600,
        }
    }
}

impl RenderSettings {
    /// Folder of a user's unit files: root's, group the user, 0750.
    pub fn user_folder(&self, uid: u32) -> PathBuf {
        self.units_folder.join(uid.to_string())
    }

    /// Folder of an instance's files of secrets: in it one folder for each secret.
    pub fn secrets_of(&self, assignment: &Assignment) -> PathBuf {
        let uid = assignment.user.uid.to_string();
        self.secrets_folder.join(uid).join(&assignment.instance)
    }

    /// Podman's file with the credentials that a user's pulls need: root's, group the user, 0640.
    pub fn auth_file(&self, uid: u32) -> PathBuf {
        self.auth_folder.join(format!("{uid}.json"))
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

/// What a rendered file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitFileKind {
    /// A `.container` or `.image`: linked into `/etc/containers/systemd/users/UID`.
    Quadlet,
    /// Values of variables: only the unit names it, by its absolute path.
    Environment,
}

/// A file of [`RenderSettings::user_folder`]: root's, group the user, 0640 (it may hold values of
/// variables).
#[derive(Clone, PartialEq, Eq)]
pub struct UnitFile {
    /// File name.
    pub name: String,
    /// Content.
    pub text: String,
    /// What it is for.
    pub kind: UnitFileKind,
}

impl UnitFile {
    /// The service that Podman's generator makes of it (podman-systemd.unit(5)):
    /// `a.container` becomes `a.service`, `a.image` becomes `a-image.service`.
    pub fn service(&self) -> Option<String> {
        if let Some(stem) = self.name.strip_suffix(".container") {
            return Some(format!("{stem}.service"));
        }
        let stem = self.name.strip_suffix(".image")?;
        Some(format!("{stem}-image.service"))
    }
}

/// The text is left out: it may hold values of variables.
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
    /// Reads every template: those of `folder` where it has them, else the compiled-in ones.
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

    /// Reads [`TEMPLATES_FOLDER`] if it is there, else the compiled-in templates.
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
            kat_types::json::text("a word of a unit", text).map_err(tera::Error::message)
        },
    );
}

#[cfg(test)]
mod tests;
