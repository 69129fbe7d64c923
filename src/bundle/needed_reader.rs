//! The version of the reader of stored files that files need.
//!
//! Files are stored as they were written, and every leader reads those of every workload. A leader
//! of an earlier version does not read a file that leaves out a field which that version requires.

use super::{
    CARRIED, DocumentKind, Position, SourceFile,
    diagnostic::quote,
    fields::{self, Field, FieldType},
    yaml::{self, YamlNode, YamlValue, item_path, key_path, locate},
};

/// A value that earlier versions read, and act on in another way.
struct NeededValue {
    kind: DocumentKind,
    path: &'static str,
    word: &'static str,
    /// The version that acts on it.
    since: u32,
    instead: &'static str,
}

/// The values that not every version acts on.
const VALUES: &[NeededValue] = &[
    NeededValue {
        kind: DocumentKind::Workload,
        path: "spec.type",
        word: "DaemonService",
        // An earlier one stops its instances.
        since: 5,
        instead: "upgrade that machine first: an earlier version runs no DaemonService",
    },
    NeededValue {
        kind: DocumentKind::JobDefinition,
        path: "spec.completions",
        word: "PerNode",
        // An earlier one runs a single instance.
        since: 7,
        instead: "write the number of instances that must succeed",
    },
    NeededValue {
        kind: DocumentKind::JobDefinition,
        path: "spec.concurrencyPolicy",
        word: "Allow",
        // An earlier one bounds neither the runs nor their times.
        since: 7,
        instead: "write Forbid or Replace",
    },
    on_ingress(DocumentKind::Workload),
    on_ingress(DocumentKind::VirtualLoadBalancer),
];

const fn on_ingress(kind: DocumentKind) -> NeededValue {
    NeededValue {
        kind,
        path: "spec.ports[].hostPortOn",
        word: "ingress",
        // An earlier one opens the port on the machines that have an instance.
        since: 7,
        instead: "leave hostPortOn out",
    }
}

/// Why files need a version of the reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededReader {
    /// The version, [`manifest_reader`] at most.
    pub version: u32,
    /// What needs it, such as ``workload.kat:4:1: `spec.type` is left out``.
    pub why: String,
    /// The same without the file and the place.
    pub what: String,
    /// How to write the same for an earlier version.
    pub instead: String,
}

/// The version of this reader of stored files: the highest that any file needs.
///
/// A leader reads the files of every workload, so a file that needs a higher version is stored only
/// when every machine that may lead has it.
pub fn manifest_reader() -> u32 {
    let of_fields = fields::all().flat_map(|field| {
        let as_a_word = match field.value {
            FieldType::MappingOr(_, since) => since,
            _ => 1,
        };
        [field.since, field.optional_since, as_a_word]
    });
    let of_values = VALUES.iter().map(|value| value.since);
    of_fields.chain(of_values).fold(1, u32::max)
}

/// The highest version of the reader that the files need, and the first place that needs it;
/// `None` if every version reads them.
pub fn needed_reader(files: &[SourceFile]) -> Option<NeededReader> {
    // The first of the highest ones.
    let found = needed_readers(files).into_iter();
    found.rev().max_by_key(|found| found.version)
}

/// Every place of the files that not every version reads, in their order.
pub fn needed_readers(files: &[SourceFile]) -> Vec<NeededReader> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.name != CARRIED) {
        for root in yaml::read(&file.name, &file.text, &mut Vec::new()).roots {
            let kind = match locate(&root, "kind").map(|(node, _)| &node.value) {
                Some(YamlValue::Scalar { text, .. }) => DocumentKind::from_word(text),
                _ => None,
            };
            if let Some(kind) = kind {
                let mut walk = Walk {
                    file: &file.name,
                    kind,
                    found: &mut found,
                };
                walk.absent(&root);
                walk.written_below(&root, "");
            }
        }
    }
    found
}

/// Whether a document's type is Service, which is its default.
pub(crate) fn is_service(root: &YamlNode) -> bool {
    locate(root, "spec.type").is_none_or(|(node, _)| match &node.value {
        YamlValue::Scalar { text, .. } => text == "Service",
        YamlValue::Sequence(_) | YamlValue::Mapping(_) => false,
    })
}

struct Walk<'a> {
    file: &'a str,
    kind: DocumentKind,
    found: &'a mut Vec<NeededReader>,
}

impl Walk<'_> {
    /// Fields that are not written, and had to be in an earlier version.
    fn absent(&mut self, root: &YamlNode) {
        let kind = self.kind;
        let once_required = fields::all().filter(|field| field.optional_since > 1);
        for field in once_required.filter(|field| field.kind == kind) {
            let Some((parent, key)) = locate(root, field.parent()) else {
                continue;
            };
            let YamlValue::Mapping(entries) = &parent.value else {
                continue;
            };
            let is_written = entries.iter().any(|entry| entry.key == field.name());
            // Only a Service had to have it.
            let is_ignored = field.path == "spec.replicas" && !is_service(root);
            if is_written || is_ignored {
                continue;
            }
            let instead = match field.default {
                Some(default) => format!("write `{}: {default}`", field.name()),
                None => format!("write `{}`", field.name()),
            };
            let why = format!("`{}` is left out", field.path);
            let at = key.unwrap_or(parent.span).start;
            self.push(field.optional_since, at, &why, instead);
        }
    }

    /// Fields that are written and that an earlier version does not know.
    fn written_below(&mut self, node: &YamlNode, path: &str) {
        match &node.value {
            YamlValue::Scalar { .. } => {}
            YamlValue::Sequence(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.written_below(item, &item_path(path, index));
                }
            }
            YamlValue::Mapping(entries) => {
                for entry in entries {
                    let path = key_path(path, &entry.key);
                    if let Some(field) = fields::lookup(self.kind, &path) {
                        self.written(field, &entry.node, entry.key_span.start);
                        self.written_below(&entry.node, &path);
                    }
                }
            }
        }
    }

    fn written(&mut self, field: &Field, node: &YamlNode, at: Position) {
        if field.since > 1 {
            let why = format!("`{}` is written", field.path);
            let instead = match field.path {
                "spec" => "upgrade that machine first: an earlier version runs no Job".to_owned(),
                "spec.ports" => "write the ports in VirtualLoadBalancer.kat".to_owned(),
                _ => format!("leave {} out", field.name()),
            };
            self.push(field.since, at, &why, instead);
        }
        if let YamlValue::Scalar { text, .. } = &node.value {
            let mut values = VALUES.iter();
            let value = values.find(|value| {
                value.kind == self.kind && value.path == field.path && value.word == text
            });
            if let Some(NeededValue {
                path,
                word,
                since,
                instead,
                ..
            }) = value
            {
                let why = format!("`{path}` is {word}");
                self.push(*since, at, &why, (*instead).to_owned());
            }
        }
        if let (FieldType::MappingOr(alone, since), YamlValue::Scalar { text, .. }) =
            (field.value, &node.value)
        {
            let why = format!("`{}` is a word", field.path);
            let instead = format!("write `{}: {{{alone}: {}}}`", field.name(), quote(text));
            self.push(since, at, &why, instead);
        }
    }

    fn push(&mut self, version: u32, at: Position, why: &str, instead: String) {
        let Position { line, column, .. } = at;
        self.found.push(NeededReader {
            version,
            why: format!("{}:{line}:{column}: {why}", self.file),
            what: why.to_owned(),
            instead,
        });
    }
}
