//! One table of every field that the `*.kat` files have.
//!
//! The table gives the decoder its ranges, the defaults, the descriptions of the JSON Schema, and
//! the fields that take effect. Tests compare it with the types and the decoder, field by field.

mod balancer;
mod cluster;
pub(crate) mod job_build_namespace;
mod ports;
mod workload;

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use super::kind::DocumentKind;

/// One field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The document that has it.
    pub kind: DocumentKind,
    /// Its path, such as `spec.container.env[].name`; `[]` stands for each item of a list.
    pub path: &'static str,
    /// Type of its value.
    pub value: FieldType,
    /// Whether it must be written (always, or if its parent is written).
    pub required: bool,
    /// The value if it is not written, as YAML; writing it makes no difference.
    pub default: Option<&'static str>,
    /// Whether it takes effect.
    pub status: FieldStatus,
    /// Version of the reader of stored files that a document with the field needs. The highest in
    /// the table is this version's: [`super::manifest_reader`].
    pub since: u32,
    /// Version of the reader that a document without the field needs, although the field's parent
    /// is written; 1 if it always was optional.
    pub optional_since: u32,
    /// A value as one would write it, as YAML.
    pub example: &'static str,
    /// Description in one line.
    pub description: &'static str,
}

/// Type of a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldType {
    /// Text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number in these bounds.
    Integer(u64, u64),
    /// A whole number in these bounds, or the text described.
    IntegerOr(u64, u64, &'static str),
    /// `true` or `false`.
    Boolean,
    /// Processor time, such as `100m`.
    Processor,
    /// A size, such as `64Mi`.
    Size,
    /// A range of IPv4 addresses.
    Cidr,
    /// A list of texts.
    TextList,
    /// Texts under free keys.
    TextMap,
    /// Fields of its own.
    Mapping,
    /// A list of mappings.
    List,
    /// A list of values like the field at that path.
    ListOf(&'static str),
    /// Fields of its own, or the value of this one of them alone; the second form needs that
    /// version of the reader of stored files.
    MappingOr(&'static str, u32),
    /// `true` or `false`, or fields of its own.
    BooleanOrMapping,
}

/// Whether a field takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldStatus {
    /// Identifies the document or its kind.
    Identity,
    /// It takes effect.
    Effective,
    /// Not supported yet: any value but the default is refused.
    NotYet,
}

impl fmt::Display for FieldType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => formatter.write_str("text"),
            Self::Word(words) => formatter.write_str(&words.join(" | ")),
            Self::Integer(least, most) => write!(formatter, "whole number, {least} to {most}"),
            Self::IntegerOr(least, most, other) => {
                write!(formatter, "whole number, {least} to {most}, or {other}")
            }
            Self::Boolean => formatter.write_str("true | false"),
            Self::Processor => formatter.write_str("processor amount such as 100m or 1.5"),
            Self::Size => formatter.write_str("size such as 64Mi"),
            Self::Cidr => formatter.write_str("IPv4 range such as 10.100.0.0/16"),
            Self::TextList => formatter.write_str("list of texts"),
            Self::TextMap => formatter.write_str("mapping of texts"),
            Self::Mapping => formatter.write_str("mapping"),
            Self::List => formatter.write_str("list of mappings"),
            Self::ListOf(path) => write!(formatter, "list, each like {path}"),
            Self::BooleanOrMapping => formatter.write_str("true | false, or mapping"),
            Self::MappingOr(field, _) => write!(formatter, "mapping, or its {field} alone"),
        }
    }
}

impl Field {
    const fn new(
        kind: DocumentKind,
        path: &'static str,
        value: FieldType,
        example: &'static str,
        description: &'static str,
    ) -> Self {
        Self {
            kind,
            path,
            value,
            required: false,
            default: None,
            status: FieldStatus::Effective,
            since: 1,
            optional_since: 1,
            example,
            description,
        }
    }

    const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    const fn default(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    const fn identity(mut self) -> Self {
        self.status = FieldStatus::Identity;
        self
    }

    const fn not_yet(mut self) -> Self {
        self.status = FieldStatus::NotYet;
        self
    }

    /// Only this version of the reader of stored files knows it.
    const fn since(mut self, reader: u32) -> Self {
        self.since = reader;
        self
    }

    /// It had to be written before this version of the reader of stored files.
    const fn optional_since(mut self, reader: u32) -> Self {
        self.optional_since = reader;
        self
    }

    /// The last part of the path, without `[]`.
    pub fn name(&self) -> &'static str {
        let last = self.path.rsplit('.').next().unwrap_or(self.path);
        last.strip_suffix("[]").unwrap_or(last)
    }

    /// The path of the field that this one lies in; empty at the top.
    pub fn parent(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(parent, _)| parent)
    }
}

/// The version that every document names.
const API_VERSION: &[&str] = &[kat_types::resource::API_VERSION];

/// Every field, the parents before their children.
pub fn all() -> impl Iterator<Item = &'static Field> {
    workload::FIELDS
        .iter()
        .chain(&ports::OF_WORKLOAD)
        .chain(balancer::HEAD)
        .chain(&ports::OF_BALANCER)
        .chain(balancer::FIELDS)
        .chain(job_build_namespace::FIELDS)
        .chain(cluster::FIELDS)
}

static BY_PATH: LazyLock<BTreeMap<(DocumentKind, &'static str), &'static Field>> =
    LazyLock::new(|| {
        all()
            .map(|field| ((field.kind, field.path), field))
            .collect()
    });

/// The field at a path; indexes of items are ignored (`env[2].name`, `env[].name`).
///
/// A field of an init container or a sidecar without a row of its own has the row of
/// `spec.container`.
pub fn lookup(kind: DocumentKind, path: &str) -> Option<&'static Field> {
    let pattern = pattern(path);
    let found = |pattern: &str| BY_PATH.get(&(kind, pattern)).copied();
    if kind == DocumentKind::Workload {
        for list in ["spec.initContainers[]", "spec.sidecars[]"] {
            if let Some(rest) = pattern.strip_prefix(list) {
                let like = format!("spec.container{rest}");
                let own = found(&pattern);
                return own.or_else(|| found(&like).filter(|field| is_shared(field)));
            }
        }
    }
    found(&pattern)
}

/// Whether init containers and sidecars have the field too.
fn is_shared(field: &Field) -> bool {
    !["spec.container.hostNetwork", "spec.container.drainSeconds"].contains(&field.path)
}

/// The fields directly below a path, in the table's order.
pub fn children(kind: DocumentKind, path: &str) -> impl Iterator<Item = &'static Field> {
    let parent = lookup(kind, path.strip_suffix("[]").unwrap_or(path));
    let mut prefix = parent.map_or("", |field| field.path).to_owned();
    let mut like = None;
    match parent.map(|field| field.value) {
        Some(FieldType::List) => prefix.push_str("[]"),
        Some(FieldType::ListOf(other)) => {
            prefix.push_str("[]");
            like = Some(other);
        }
        _ => {}
    }
    let of = move |field: &Field, parent: &str| field.kind == kind && field.parent() == parent;
    let own: Vec<_> = all().filter(|field| of(field, &prefix)).collect();
    let names: Vec<_> = own.iter().map(|field| field.name()).collect();
    let shared = all().filter(move |field| {
        let like = like.is_some_and(|like| of(field, like));
        like && is_shared(field) && !names.contains(&field.name())
    });
    own.into_iter().chain(shared)
}

/// `env[2].name` -> `env[].name`.
fn pattern(path: &str) -> String {
    let mut pattern = String::with_capacity(path.len());
    let mut inside = false;
    for character in path.chars() {
        match character {
            '[' => {
                inside = true;
                pattern.push('[');
            }
            ']' => {
                inside = false;
                pattern.push(']');
            }
            digit if inside && digit.is_ascii_digit() => {}
            other => pattern.push(other),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parent_is_in_the_table() {
        for field in all() {
            let parent = field.parent();
            let parent = parent.strip_suffix("[]").unwrap_or(parent);
            assert!(
                parent.is_empty() || lookup(field.kind, parent).is_some(),
                "{} has no row for its parent",
                field.path
            );
        }
        assert_eq!(
            BY_PATH.len(),
            all().count(),
            "a path stands in the table twice"
        );
    }

    #[test]
    fn finds_fields_by_their_concrete_paths() {
        let path = |path| lookup(DocumentKind::Workload, path).map(|field| field.path);
        assert_eq!(
            path("spec.container.env[12].name"),
            Some("spec.container.env[].name")
        );
        assert_eq!(
            path("spec.sidecars[0].env[1].name"),
            Some("spec.container.env[].name")
        );
        assert_eq!(path("spec.container.nothing"), None);
        let names: Vec<_> = children(DocumentKind::Workload, "spec.sidecars[]")
            .map(Field::name)
            .collect();
        assert!(names.contains(&"command"), "{names:?}");
        let names: Vec<_> = children(DocumentKind::Namespace, "")
            .map(Field::name)
            .collect();
        assert_eq!(names, ["apiVersion", "kind", "metadata", "spec"]);
    }
}
