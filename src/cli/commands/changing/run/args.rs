//! Arguments of `run` and `new`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{args::NamespaceOption, output::plain, time};
use kat_bundle::{check_image, check_variable};
use kat_types::resource::{Protocol, name::check_label};

/// What a workload is made of, besides its name and image.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkloadOptions {
    /// Port of the container; with HOST a port of each machine with an instance leads there, with
    /// `auto` one that is selected; may be repeated
    #[arg(short, long = "publish", value_name = "[HOST:]PORT|auto:PORT", value_parser = parse_port)]
    pub(crate) ports: Vec<PublishedPort>,
    /// Environment variable; without a value, that of this shell; may be repeated
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    pub(crate) env: Vec<VariableOption>,
    /// File of environment variables, NAME=VALUE on each line, as for Podman; may be repeated
    #[arg(long = "env-file", value_name = "FILE")]
    pub(crate) env_files: Vec<PathBuf>,
    /// Volume that keeps data, and where it is mounted; may be repeated
    #[arg(short = 'v', long = "volume", value_name = "NAME:/PATH[:ro]", value_parser = parse_mount)]
    pub(crate) mounts: Vec<MountOption>,
    /// Host name, and path, of HTTP requests from outside that reach the first port
    #[arg(long, value_name = "HOST[/PATH]", value_parser = parse_route)]
    pub(crate) route: Option<RouteOption>,
    /// Machine on which the instances run
    #[arg(long = "on", value_name = "NODE", value_parser = parse_name)]
    pub(crate) node: Option<String>,
    /// Number of instances [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "job")]
    pub(crate) replicas: Option<u32>,
    /// Run to the end instead of until it is deleted
    #[arg(long)]
    pub(crate) job: bool,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// Command and its arguments, after --; replaces the image's CMD
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Image with its registry, such as docker.io/library/nginx:1.28
    #[arg(value_parser = parse_image)]
    pub(super) image: String,
    /// Name of the workload [default: the last part of the image's name]
    #[arg(long, value_parser = parse_name)]
    pub(super) name: Option<String>,
    #[command(flatten)]
    pub(super) options: WorkloadOptions,
    /// Also write the files into this folder, which `katcall apply` takes
    #[arg(long, value_name = "DIR")]
    pub(super) save: Option<PathBuf>,
    /// Wait until the workload runs as written; with --job, show the output of its run, and end with
    /// the exit code of its program
    #[arg(long)]
    pub(super) wait: bool,
    /// Time limit of the wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
}

impl RunArgs {
    pub(crate) fn waits(&self) -> bool {
        self.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Name of the workload
    #[arg(value_parser = parse_name)]
    pub(super) name: String,
    /// Folder for the files [default: the name]
    #[arg(value_name = "DIR")]
    pub(super) folder: Option<PathBuf>,
    /// Image with its registry, such as docker.io/library/nginx:1.28
    #[arg(long, value_parser = parse_image)]
    pub(super) image: String,
    #[command(flatten)]
    pub(super) options: WorkloadOptions,
}

/// Which port of the machines leads to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachinePort {
    None,
    Auto,
    Number(u16),
}

/// A port of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishedPort {
    pub(crate) machine: MachinePort,
    pub(crate) container: u16,
    pub(crate) protocol: Protocol,
}

/// A variable, and its value if it is written.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct VariableOption {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

/// The value is left out: it may be a password.
impl std::fmt::Debug for VariableOption {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.name)
    }
}

/// A volume with the place where it is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountOption {
    pub(crate) volume: String,
    pub(crate) path: String,
    pub(crate) read_only: bool,
}

/// A route from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteOption {
    pub(crate) host: String,
    pub(crate) path: Option<String>,
}

fn parse_image(text: &str) -> Result<String, String> {
    check_image(text).map(|()| text.to_owned())
}

fn parse_name(text: &str) -> Result<String, String> {
    check_label(text)
        .map(|()| text.to_owned())
        .map_err(|error| plain(&error.to_string()))
}

fn parse_port(text: &str) -> Result<PublishedPort, String> {
    let (ports, protocol) = match text.split_once('/') {
        None => (text, Protocol::default()),
        Some((ports, "tcp")) => (ports, Protocol::Tcp),
        Some((ports, "udp")) => (ports, Protocol::Udp),
        Some((_, other)) => {
            return Err(format!("found `/{}`, expected /tcp or /udp", plain(other)));
        }
    };
    let parts: Vec<&str> = ports.split(':').collect();
    let (machine, container) = match parts.as_slice() {
        [container] => (MachinePort::None, container),
        ["auto", container] => (MachinePort::Auto, container),
        [host, container] => (MachinePort::Number(port_number(host)?), container),
        _ => {
            return Err(format!(
                "found `{}`, expected PORT, HOST:PORT or auto:PORT; a host port is one of all the machine's addresses",
                plain(text)
            ));
        }
    };
    Ok(PublishedPort {
        machine,
        container: port_number(container)?,
        protocol,
    })
}

fn port_number(text: &str) -> Result<u16, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|port| is_number && *port > 0);
    number.ok_or_else(|| format!("found `{}`, expected a port from 1 to 65535", plain(text)))
}

fn parse_variable(text: &str) -> Result<VariableOption, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    check_variable(name)?;
    Ok(VariableOption {
        name: name.to_owned(),
        value,
    })
}

fn parse_mount(text: &str) -> Result<MountOption, String> {
    let expected = || {
        format!(
            "found `{}`, expected NAME:/PATH or NAME:/PATH:ro",
            plain(text)
        )
    };
    if text.starts_with(['/', '.', '~']) {
        return Err(format!(
            "{}; a path of the machine is a `hostMount` in workload.kat, and files of a folder are `files`",
            expected()
        ));
    }
    let (volume, rest) = text.split_once(':').ok_or_else(expected)?;
    let (path, read_only) = match rest.split_once(':') {
        None => (rest, false),
        Some((path, "ro")) => (path, true),
        Some((path, "rw")) => (path, false),
        Some(_) => return Err(expected()),
    };
    if !path.starts_with('/') {
        return Err(expected());
    }
    Ok(MountOption {
        volume: parse_name(volume)?,
        path: path.to_owned(),
        read_only,
    })
}

fn parse_route(text: &str) -> Result<RouteOption, String> {
    let (host, path) = match text.split_once('/') {
        Some((host, path)) => (host, Some(format!("/{path}"))),
        None => (text, None),
    };
    if host.is_empty() {
        return Err(format!(
            "found `{}`, expected a host such as shop.example.org",
            plain(text)
        ));
    }
    Ok(RouteOption {
        host: host.to_owned(),
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_say_which_port_of_the_machine_leads_to_them() {
        let port = |machine, container, protocol| {
            Ok(PublishedPort {
                machine,
                container,
                protocol,
            })
        };
        for (text, expected) in [
            ("8080", port(MachinePort::None, 8080, Protocol::Tcp)),
            (
                "80:8080",
                port(MachinePort::Number(80), 8080, Protocol::Tcp),
            ),
            ("auto:53/udp", port(MachinePort::Auto, 53, Protocol::Udp)),
        ] {
            assert_eq!(parse_port(text), expected, "{text}");
        }
        for wrong in [
            "",
            "0",
            "+80",
            "65536",
            "80:",
            ":80",
            "x:80",
            "127.0.0.1:80:80",
            "80/sctp",
            "80-90",
            "8\u{1b}[2J",
        ] {
            let error = parse_port(wrong).unwrap_err();
            assert!(error.starts_with("found `"), "{error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn volumes_have_a_name_and_a_path() {
        let mount = parse_mount("data:/data:ro").unwrap();
        assert_eq!(
            (mount.volume.as_str(), mount.path.as_str()),
            ("data", "/data")
        );
        assert!(mount.read_only);
        assert!(!parse_mount("data:/data").unwrap().read_only);
        for wrong in [
            "data", "data:", "data:x", ":/x", "Data:/x", "a:/b:z", "a\n:/b",
        ] {
            assert!(parse_mount(wrong).is_err(), "{wrong}");
        }
        let host = parse_mount("/srv/www:/www").unwrap_err();
        assert!(host.contains("hostMount"), "{host}");
    }

    #[test]
    fn a_wrong_variable_never_shows_its_value() {
        let variable = parse_variable("A=b=c").unwrap();
        assert_eq!(variable.value.as_deref(), Some("b=c"));
        assert_eq!(parse_variable("A").unwrap().value, None);
        assert!(!format!("{variable:?}").contains("b=c"));
        for wrong in ["=hidden", "1A=hidden", "A B=hidden"] {
            let error = parse_variable(wrong).unwrap_err();
            assert!(!error.contains("hidden"), "{error}");
        }
    }
}
