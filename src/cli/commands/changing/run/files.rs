//! The `*.kat` files of a workload that is made of options.

use super::args::{MachinePort, MountOption, PublishedPort, RouteOption};
use crate::output::yaml;
use kat_bundle::{DocumentKind, SourceFile};
use kat_types::resource::{API_VERSION, Protocol};

/// The label of a machine with its own name.
const NODE_NAME: &str = "kat.dws.rip/nodeName";

/// What the files are made of.
#[derive(Clone, Default)]
pub(super) struct WorkloadSketch {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) image: String,
    pub(super) ports: Vec<PublishedPort>,
    pub(super) env: Vec<(String, String)>,
    pub(super) mounts: Vec<MountOption>,
    pub(super) route: Option<RouteOption>,
    pub(super) node: Option<String>,
    pub(super) replicas: u32,
    pub(super) job: bool,
    pub(super) command: Vec<String>,
}

impl WorkloadSketch {
    /// The files, not checked: what is wrong with a value is found when they are parsed.
    pub(super) fn files(&self) -> Vec<SourceFile> {
        let file = |kind: DocumentKind, text: String| SourceFile {
            name: kind.file().to_owned(),
            text,
        };
        let mut files = vec![file(DocumentKind::Workload, self.workload())];
        if !self.ports.is_empty() || self.route.is_some() {
            let text = self.load_balancer();
            files.push(file(DocumentKind::VirtualLoadBalancer, text));
        }
        if self.job {
            let mut text = document(DocumentKind::JobDefinition);
            text.push("spec: {}");
            files.push(file(DocumentKind::JobDefinition, text.end()));
        }
        files
    }

    fn workload(&self) -> String {
        let mut text = document(DocumentKind::Workload);
        text.push("metadata:");
        text.field(1, "name", &self.name);
        if self.namespace != "default" {
            text.field(1, "namespace", &self.namespace);
        }
        text.push("spec:");
        let kind = if self.job { "Job" } else { "Service" };
        text.field(1, "type", kind);
        text.push("  source:");
        text.field(2, "image", &self.image);
        if !self.job {
            text.push(&format!("  replicas: {}", self.replicas));
        }
        text.push("  restartPolicy:");
        let condition = if self.job { "Never" } else { "Always" };
        text.field(2, "condition", condition);
        if let Some(node) = &self.node {
            text.push("  nodeSelector:");
            text.field(2, NODE_NAME, node);
        }
        self.container(&mut text);
        self.volumes(&mut text);
        text.end()
    }

    fn container(&self, text: &mut YamlText) {
        if self.command.is_empty() && self.env.is_empty() && self.mounts.is_empty() {
            return text.push("  container: {}");
        }
        text.push("  container:");
        if !self.command.is_empty() {
            text.push("    # Replaces the image's CMD.");
            text.push("    command:");
            for word in &self.command {
                text.push(&format!("      - {}", yaml::string(word)));
            }
        }
        if !self.env.is_empty() {
            text.push("    # Values are stored as they are; `katcall secret set` and `valueFrom` are for passwords.");
            text.push("    env:");
            for (name, value) in &self.env {
                text.item(3, "name", name);
                text.field(4, "value", value);
            }
        }
        if !self.mounts.is_empty() {
            text.push("    volumeMounts:");
            for mount in &self.mounts {
                text.item(3, "name", &mount.volume);
                text.field(4, "mountPath", &mount.path);
                if mount.read_only {
                    text.push("        readOnly: true");
                }
            }
        }
    }

    /// Each volume once, though it may be mounted at several places.
    fn volumes(&self, text: &mut YamlText) {
        if self.mounts.is_empty() {
            return;
        }
        text.push("  volumes:");
        for (index, mount) in self.mounts.iter().enumerate() {
            let mut before = self.mounts.iter().take(index);
            if before.all(|other| other.volume != mount.volume) {
                text.item(2, "name", &mount.volume);
                text.push("      simpleClusterStorage: {}");
            }
        }
    }

    fn load_balancer(&self) -> String {
        let mut text = document(DocumentKind::VirtualLoadBalancer);
        text.push("spec:");
        let ports = match self.ports.is_empty() {
            true => "  ports: []",
            false => "  ports:",
        };
        text.push(ports);
        for port in &self.ports {
            text.push(&format!("    - containerPort: {}", port.container));
            if port.protocol != Protocol::default() {
                text.field(3, "protocol", port.protocol.word());
            }
            match port.machine {
                MachinePort::None => {}
                MachinePort::Auto => text.push("      hostPort: auto"),
                MachinePort::Number(number) => text.push(&format!("      hostPort: {number}")),
            }
        }
        if let Some(route) = &self.route {
            text.push("  ingress:");
            text.item(2, "host", &route.host);
            if let Some(path) = &route.path {
                text.field(3, "path", path);
            }
            if let Some(port) = self.ports.first() {
                text.push(&format!("      servicePort: {}", port.container));
            }
        }
        text.end()
    }
}

/// Lines of a document; every value is quoted where it needs that.
struct YamlText {
    lines: Vec<String>,
}

/// The beginning of a document.
fn document(kind: DocumentKind) -> YamlText {
    let mut text = YamlText { lines: Vec::new() };
    if kind == DocumentKind::Workload {
        text.push("# `katcall explain workload.spec` lists all fields.");
    }
    text.field(0, "apiVersion", API_VERSION);
    text.field(0, "kind", kind.as_str());
    text
}

impl YamlText {
    fn push(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }

    /// A field with a text, at a depth of two spaces each.
    fn field(&mut self, depth: usize, key: &str, value: &str) {
        let indent = "  ".repeat(depth);
        self.lines.push(format!(
            "{indent}{}: {}",
            yaml::string(key),
            yaml::string(value)
        ));
    }

    /// The first field of an item of a list.
    fn item(&mut self, depth: usize, key: &str, value: &str) {
        let indent = "  ".repeat(depth);
        self.lines.push(format!(
            "{indent}- {}: {}",
            yaml::string(key),
            yaml::string(value)
        ));
    }

    fn end(self) -> String {
        self.lines.join("\n") + "\n"
    }
}

/// The longest name of a workload.
const LONGEST_NAME: usize = kat_types::resource::name::MAX_NAME;

/// A valid name from the last part of an image's name, without tag and digest; `None` if nothing of
/// it is left.
pub(super) fn name_of_image(image: &str) -> Option<String> {
    let without_digest = image.split('@').next().unwrap_or(image);
    let last = without_digest.rsplit('/').next().unwrap_or_default();
    let base = last.split(':').next().unwrap_or(last);
    let valid = |one: char| match one {
        'a'..='z' | '0'..='9' => one,
        _ => '-',
    };
    let name: String = base.to_ascii_lowercase().chars().map(valid).collect();
    let name: String = name.trim_matches('-').chars().take(LONGEST_NAME).collect();
    let name = name.trim_end_matches('-');
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use kat_bundle::{DecodeMode, not_yet, parse};
    use kat_types::resource::HostPort;
    use proptest::prelude::*;

    use super::*;

    fn sketch() -> WorkloadSketch {
        WorkloadSketch {
            name: "web".to_owned(),
            namespace: "default".to_owned(),
            image: "registry.example/web:1".to_owned(),
            replicas: 1,
            ..WorkloadSketch::default()
        }
    }

    fn port(machine: MachinePort, container: u16, protocol: Protocol) -> PublishedPort {
        PublishedPort {
            machine,
            container,
            protocol,
        }
    }

    fn mount(path: &str, read_only: bool) -> MountOption {
        MountOption {
            volume: "data".to_owned(),
            path: path.to_owned(),
            read_only,
        }
    }

    #[test]
    fn an_image_alone_is_one_short_file() {
        let files = sketch().files();
        let [file] = &files[..] else {
            panic!("{files:?}");
        };
        insta::assert_snapshot!(file.text, @r"
        # `katcall explain workload.spec` lists all fields.
        apiVersion: kat.dws.rip/v1alpha1
        kind: Workload
        metadata:
          name: web
        spec:
          type: Service
          source:
            image: registry.example/web:1
          replicas: 1
          restartPolicy:
            condition: Always
          container: {}
        ");
        let bundle = parse(&files, DecodeMode::Strict).unwrap();
        assert!(not_yet(&bundle).is_empty());
    }

    #[test]
    fn every_option_is_in_the_files() {
        let whole = WorkloadSketch {
            namespace: "shop".to_owned(),
            replicas: 3,
            ports: vec![
                port(MachinePort::Number(80), 8080, Protocol::Tcp),
                port(MachinePort::Auto, 53, Protocol::Udp),
                port(MachinePort::None, 9090, Protocol::Tcp),
            ],
            env: vec![("LEVEL".to_owned(), "no".to_owned())],
            // A volume that is written allows one replica.
            mounts: vec![mount("/data", true), mount("/copy", true)],
            node: Some("n1".to_owned()),
            command: vec!["sleep".to_owned(), "600".to_owned()],
            ..sketch()
        };
        let files = whole.files();
        let texts: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
        insta::assert_snapshot!(texts.join("---\n"), @r#"
        # `katcall explain workload.spec` lists all fields.
        apiVersion: kat.dws.rip/v1alpha1
        kind: Workload
        metadata:
          name: web
          namespace: shop
        spec:
          type: Service
          source:
            image: registry.example/web:1
          replicas: 3
          restartPolicy:
            condition: Always
          nodeSelector:
            kat.dws.rip/nodeName: n1
          container:
            # Replaces the image's CMD.
            command:
              - sleep
              - "600"
            # Values are stored as they are; `katcall secret set` and `valueFrom` are for passwords.
            env:
              - name: LEVEL
                value: "no"
            volumeMounts:
              - name: data
                mountPath: /data
                readOnly: true
              - name: data
                mountPath: /copy
                readOnly: true
          volumes:
            - name: data
              simpleClusterStorage: {}
        ---
        apiVersion: kat.dws.rip/v1alpha1
        kind: VirtualLoadBalancer
        spec:
          ports:
            - containerPort: 8080
              hostPort: 80
            - containerPort: 53
              protocol: UDP
              hostPort: auto
            - containerPort: 9090
        "#);
        let bundle = parse(&files, DecodeMode::Strict).unwrap();
        assert!(not_yet(&bundle).is_empty());
        let spec = bundle.workload.unwrap().spec;
        assert_eq!(spec.replicas, Some(3));
        assert_eq!(spec.node_selector[NODE_NAME], "n1");
        assert_eq!(spec.container.command, ["sleep", "600"]);
        assert_eq!(spec.container.volume_mounts.len(), 2);
        assert_eq!(spec.volumes.len(), 1);
        let ports = bundle.load_balancer.unwrap().spec.ports;
        let ports: Vec<Option<HostPort>> = ports.iter().map(|port| port.host_port).collect();
        assert!(matches!(
            ports[..],
            [Some(HostPort::Number(80)), Some(HostPort::Auto(_)), None]
        ));
    }

    #[test]
    fn a_route_and_a_job_are_accepted_as_in_files() {
        let routed = WorkloadSketch {
            ports: vec![port(MachinePort::None, 8080, Protocol::Tcp)],
            route: Some(RouteOption {
                host: "shop.example.org".to_owned(),
                path: Some("/a".to_owned()),
            }),
            ..sketch()
        };
        let job = WorkloadSketch {
            job: true,
            ..sketch()
        };
        let bundle = parse(&routed.files(), DecodeMode::Strict).unwrap();
        assert_eq!(not_yet(&bundle), []);
        let routes = &bundle.load_balancer.unwrap().spec.ingress;
        let [route] = routes.as_slice() else {
            panic!("{routes:?}");
        };
        assert_eq!(
            (route.path.as_str(), route.service_port),
            ("/a", Some(8080))
        );
        let bundle = parse(&job.files(), DecodeMode::Strict).unwrap();
        assert_eq!(not_yet(&bundle), []);
        assert!(bundle.job.is_some());
    }

    #[test]
    fn names_come_from_the_last_part_of_an_image() {
        for (image, name) in [
            ("docker.io/library/nginx:1.28", Some("nginx")),
            ("registry.lab:5000/test/web", Some("web")),
            ("ghcr.io/a/my_app.v2@sha256:00", Some("my-app-v2")),
            ("localhost/_x_", Some("x")),
            ("...", None),
        ] {
            assert_eq!(name_of_image(image).as_deref(), name, "{image}");
        }
        let long = format!("registry.example/{}-{}", "a".repeat(LONGEST_NAME - 1), "b");
        assert_eq!(name_of_image(&long).unwrap(), "a".repeat(LONGEST_NAME - 1));
    }

    proptest! {
        /// No value can become anything else than this value.
        #[test]
        fn values_are_read_back_as_they_were(value in any::<String>(), word in "[ -~\n\u{1b}]{1,12}") {
            let made = WorkloadSketch {
                env: vec![("A".to_owned(), value.clone()), ("B".to_owned(), word.clone())],
                command: vec![word.clone(), value.clone()],
                ..sketch()
            };
            match parse(&made.files(), DecodeMode::Strict) {
                Ok(bundle) => {
                    let container = bundle.workload.unwrap().spec.container;
                    prop_assert_eq!(&container.command, &[word, value.clone()]);
                    prop_assert_eq!(container.env[0].value.as_ref(), Some(&value));
                    prop_assert_eq!(container.env.len(), 2);
                }
                // A value may be refused, but never be taken for another field.
                Err(found) => for one in found {
                    let own = ["spec.container.env", "spec.container.command"];
                    prop_assert!(own.iter().any(|path| one.path.starts_with(path)), "{:?}", one);
                },
            }
        }
    }
}
