//! Parses files into a bundle, and the texts of `cluster.kat` and `agent.yaml` into settings.

use std::collections::BTreeMap;

use super::{
    Bundle, CARRIED, CarriedFile, DecodeMode, MAX_BUNDLE, MAX_FILE, MAX_FILES, SourceFile, carried,
    decode::{self, Decoder, PathValue},
    diagnostic::{Class, Diagnostic, Span, quote, sort},
    kind::DocumentKind,
    suggest::nearest,
    yaml::{self, YamlNode, YamlValue, locate},
};
use crate::{cross_file_rules as cross, cross_file_rules::ParsedDocument};
use kat_types::resource::{API_VERSION, AgentConfig, ClusterConfiguration};

/// Reads the files of one workload, or of one namespace.
///
/// Errors: every mistake of every file, in the order of files and positions. Valid fields that have
/// no effect yet are accepted here; see [`super::not_yet`].
pub fn parse(files: &[SourceFile], mode: DecodeMode) -> Result<Bundle, Vec<Diagnostic>> {
    let mut diagnostics = Vec::new();
    let mut bundle = Bundle {
        files: files.to_vec(),
        ..Bundle::default()
    };
    bundle
        .files
        .sort_by(|left, right| left.name.cmp(&right.name));
    let mut complete = check_files(&bundle.files, mode, &mut diagnostics);
    let mut roots: Vec<(&str, YamlNode)> = Vec::new();
    let carried = carried_of(&bundle.files, &mut diagnostics);
    for file in &bundle.files {
        if file.text.len() > MAX_FILE || file.name == CARRIED {
            continue;
        }
        let documents = yaml::read(&file.name, &file.text, &mut diagnostics);
        complete &= !documents.broken;
        let written: Vec<YamlNode> = documents
            .roots
            .into_iter()
            .filter(|root| !root.is_null())
            .collect();
        if written.is_empty() && !documents.broken {
            let message = "the file is empty, expected a document with apiVersion and kind";
            diagnostics.push(Diagnostic::of_file(Class::Shape, &file.name, message));
            complete = false;
        }
        roots.extend(written.into_iter().map(|root| (file.name.as_str(), root)));
    }
    let mut documents: Vec<ParsedDocument<'_>> = Vec::new();
    for (file, root) in &roots {
        match header(file, root, mode, &mut diagnostics) {
            Some(kind) => documents.push(ParsedDocument { file, kind, root }),
            None => complete = false,
        }
    }
    cross::kinds_once(&documents, &mut diagnostics);
    let mut decoded = Bundle {
        carried,
        ..Bundle::default()
    };
    // The ports of workload.kat are known before references to them are read.
    let (main, others): (Vec<_>, Vec<_>) = documents
        .iter()
        .partition(|document| document.kind == DocumentKind::Workload);
    for document in main.into_iter().chain(others) {
        let mut decoder = Decoder {
            file: document.file,
            kind: document.kind,
            mode,
            diagnostics: &mut diagnostics,
        };
        let at = PathValue::root(document.root);
        match document.kind {
            DocumentKind::Workload => decoded.workload = decode::workload(&mut decoder, &at),
            DocumentKind::VirtualLoadBalancer => {
                let main = decoded.workload.as_ref();
                let elsewhere = main.map(|workload| workload.spec.ports.as_slice());
                decoded.load_balancer = decode::load_balancer(&mut decoder, &at, elsewhere);
            }
            DocumentKind::JobDefinition => decoded.job = decode::job(&mut decoder, &at),
            DocumentKind::BuildDefinition => decoded.build = decode::build(&mut decoder, &at),
            DocumentKind::Namespace => decoded.namespace = decode::namespace(&mut decoder, &at),
            DocumentKind::Route => decoded.routes.extend(decode::route(&mut decoder, &at)),
            DocumentKind::ClusterConfiguration | DocumentKind::AgentConfig => {}
        }
    }
    if complete {
        cross::check(&documents, &decoded, mode, &mut diagnostics);
    }
    drop(documents);
    move_ports(&mut decoded);
    if diagnostics.is_empty() {
        decoded.files = bundle.files;
        return Ok(decoded);
    }
    sort(&mut diagnostics);
    Err(diagnostics)
}

/// Moves the ports of `workload.kat` to where those of `VirtualLoadBalancer.kat` are, so that it
/// makes no difference which of the two files has them.
fn move_ports(bundle: &mut Bundle) {
    let Some(workload) = &mut bundle.workload else {
        return;
    };
    let ports = std::mem::take(&mut workload.spec.ports);
    if ports.is_empty() {
        return;
    }
    let balancer = bundle.load_balancer.get_or_insert_default();
    // Both are refused in a user's files; a leader of an earlier version knows this file's alone.
    if balancer.spec.ports.is_empty() {
        balancer.spec.ports = ports;
        bundle.ports_in_workload = true;
    }
}

/// The files that volumes mount.
fn carried_of(files: &[SourceFile], diagnostics: &mut Vec<Diagnostic>) -> Vec<CarriedFile> {
    let packed = files.iter().find(|file| file.name == CARRIED);
    let carried = packed.map(|file| carried::unpack_carried(&file.text));
    carried
        .unwrap_or_else(|| Ok(Vec::new()))
        .unwrap_or_else(|message| {
            diagnostics.push(Diagnostic::of_file(Class::Archive, CARRIED, message));
            Vec::new()
        })
}

/// Checks names, number and sizes of the files; returns false if a file can't be read at all.
fn check_files(files: &[SourceFile], mode: DecodeMode, diagnostics: &mut Vec<Diagnostic>) -> bool {
    let before = diagnostics.len();
    if files.len() > MAX_FILES {
        let message = format!("found {} files, expected at most {MAX_FILES}", files.len());
        diagnostics.push(Diagnostic::of_file(Class::Oversize, "", message));
    }
    let total: usize = files.iter().map(|file| file.text.len()).sum();
    if total > MAX_BUNDLE {
        let message = format!("found {total} bytes in all files, expected at most {MAX_BUNDLE}");
        diagnostics.push(Diagnostic::of_file(Class::Oversize, "", message));
    }
    let mut seen: BTreeMap<&str, ()> = BTreeMap::new();
    for file in files {
        let packed = file.name == CARRIED;
        if mode == DecodeMode::Strict
            && !packed
            && let Some(found) = check_file_name(&file.name)
        {
            diagnostics.push(found);
        }
        if seen.insert(&file.name, ()).is_some() {
            let message = "two files have this name";
            diagnostics.push(Diagnostic::of_file(Class::Duplicate, &file.name, message));
        }
        if let Some(found) = check_file_size(&file.name, file.text.len()).filter(|_| !packed) {
            diagnostics.push(found);
        }
    }
    diagnostics.len() == before
}

/// The diagnostic of a file that is too large.
pub(super) fn check_file_size(name: &str, bytes: usize) -> Option<Diagnostic> {
    (bytes > MAX_FILE).then(|| {
        let message = format!("the file has {bytes} bytes, expected at most {MAX_FILE}");
        Diagnostic::of_file(Class::Oversize, name, message)
    })
}

/// The diagnostic of a name that is not that of a `*.kat` file: letters, digits, `.`, `_` and `-`,
/// at most 100.
pub(super) fn check_file_name(name: &str) -> Option<Diagnostic> {
    let letters = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    let stem = name.strip_suffix(".kat").unwrap_or_default();
    let fits = letters && !stem.is_empty() && !name.starts_with(['.', '-']) && name.len() <= 100;
    (!fits).then(|| {
        let message = "not the name of a *.kat file: at most 100 letters, digits, `.`, `_` and `-`, with `.kat` at the end";
        Diagnostic::of_file(Class::Archive, name, message)
    })
}

/// Reads `apiVersion` and `kind`; `None` after recording that the kind is unknown. In stored files
/// an unknown kind of another version is skipped.
fn header(
    file: &str,
    root: &YamlNode,
    mode: DecodeMode,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<DocumentKind> {
    let start = Span::point(root.span.start);
    if !matches!(root.value, YamlValue::Mapping(_)) {
        let message = "found a document without fields, expected apiVersion, kind and more";
        diagnostics.push(Diagnostic::at(Class::Shape, file, start, message));
        return None;
    }
    if file == "volume.kat" {
        diagnostics.push(no_volume(file, start));
        return None;
    }
    if mode == DecodeMode::Strict {
        api_version(file, root, diagnostics);
    }
    let Some((node, _)) = locate(root, "kind") else {
        let usual = DocumentKind::ALL
            .into_iter()
            .find(|kind| kind.file() == file);
        let usual = usual.unwrap_or(DocumentKind::Workload);
        diagnostics.push(
            Diagnostic::at(
                Class::Missing,
                file,
                start,
                "`kind` is missing: kind of the document",
            )
            .path("kind")
            .hint(format!("such as `kind: {usual}`")),
        );
        return None;
    };
    let word = match &node.value {
        YamlValue::Scalar { text, .. } => text.as_str(),
        _ => "",
    };
    let found =
        |class, message: String| Diagnostic::at(class, file, node.span, message).path("kind");
    match DocumentKind::from_word(word) {
        Some(DocumentKind::ClusterConfiguration) | None if mode == DecodeMode::Stored => None,
        Some(DocumentKind::ClusterConfiguration) => {
            let message = "a ClusterConfiguration is only for `kat-agent init`, not for a workload";
            diagnostics.push(
                found(Class::Shape, message.to_owned()).hint("use `kat-agent init --config`"),
            );
            None
        }
        Some(kind) => Some(kind),
        None if word == "Volume" => {
            diagnostics.push(no_volume(file, node.span).path("kind"));
            None
        }
        None => {
            let known = DocumentKind::IN_BUNDLE.map(DocumentKind::as_str);
            let message = format!(
                "found `{}`, expected one of {}",
                quote(word),
                known.join(", ")
            );
            let mut found = found(Class::Range, message);
            found.hint = nearest(word, known).map(|meant| format!("did you mean `{meant}`?"));
            diagnostics.push(found);
            None
        }
    }
}

fn no_volume(file: &str, span: Span) -> Diagnostic {
    let message = "volume.kat is reserved: a volume is defined where it is used";
    Diagnostic::at(Class::Shape, file, span, message)
        .hint("write it under spec.volumes of workload.kat")
}

fn api_version(file: &str, root: &YamlNode, diagnostics: &mut Vec<Diagnostic>) {
    let Some((node, _)) = locate(root, "apiVersion") else {
        let start = Span::point(root.span.start);
        let message = "`apiVersion` is missing: version of the schema";
        diagnostics.push(
            Diagnostic::at(Class::Missing, file, start, message)
                .path("apiVersion")
                .hint(format!("write `apiVersion: {API_VERSION}`")),
        );
        return;
    };
    let word = match &node.value {
        YamlValue::Scalar { text, .. } => text.as_str(),
        _ => "",
    };
    if word != API_VERSION {
        let message = format!("found `{}`, expected `{API_VERSION}`", quote(word));
        diagnostics.push(Diagnostic::at(Class::Range, file, node.span, message).path("apiVersion"));
    }
}

/// Parses the text of `cluster.kat`, as a user wrote it for `kat-agent init`.
///
/// Errors: every mistake of the text; `file` is the name in diagnostics.
pub fn parse_cluster(text: &str, file: &str) -> Result<ClusterConfiguration, Vec<Diagnostic>> {
    parse_cluster_as(text, file, DecodeMode::Strict)
}

/// As [`parse_cluster`], in a given mode.
pub fn parse_cluster_as(
    text: &str,
    file: &str,
    mode: DecodeMode,
) -> Result<ClusterConfiguration, Vec<Diagnostic>> {
    let kind = DocumentKind::ClusterConfiguration;
    single(text, file, kind, mode, |decoder, root| {
        if decoder.mode == DecodeMode::Strict && matches!(root.value, YamlValue::Mapping(_)) {
            api_version(decoder.file, root, decoder.diagnostics);
        }
        let at = PathValue::root(root);
        if matches!(root.value, YamlValue::Mapping(_)) {
            cluster_kind(decoder, root);
        }
        decode::cluster(decoder, &at)
    })
}

/// Checks that the document is a ClusterConfiguration.
fn cluster_kind(decoder: &mut Decoder<'_>, root: &YamlNode) {
    let kind = DocumentKind::ClusterConfiguration;
    let (class, span, found) = match locate(root, "kind").map(|(node, _)| node) {
        None => {
            let start = Span::point(root.span.start);
            (Class::Missing, start, "`kind` is missing".to_owned())
        }
        Some(node) => match &node.value {
            YamlValue::Scalar { text, .. } if text == kind.as_str() => return,
            YamlValue::Scalar { text, .. } => {
                (Class::Range, node.span, format!("found `{}`", quote(text)))
            }
            _ => (Class::Range, node.span, "found more than a word".to_owned()),
        },
    };
    decoder.hard(
        class,
        span,
        "kind",
        format!("{found}, expected `{kind}`"),
        None,
    );
}

/// Parses the text of `/etc/kat/agent.yaml`; an empty text gives the defaults.
///
/// Errors: every mistake of the text; `file` is the name in diagnostics.
pub fn parse_agent_config(text: &str, file: &str) -> Result<AgentConfig, Vec<Diagnostic>> {
    parse_agent_config_as(text, file, DecodeMode::Strict)
}

/// As [`parse_agent_config`], in a given mode.
pub fn parse_agent_config_as(
    text: &str,
    file: &str,
    mode: DecodeMode,
) -> Result<AgentConfig, Vec<Diagnostic>> {
    single(
        text,
        file,
        DocumentKind::AgentConfig,
        mode,
        |decoder, root| {
            if root.is_null() {
                return Some(AgentConfig::default());
            }
            decode::agent_config(decoder, &PathValue::root(root))
        },
    )
}

/// Decodes a text of exactly one document, or of none if that has a meaning.
fn single<T>(
    text: &str,
    file: &str,
    kind: DocumentKind,
    mode: DecodeMode,
    decode: impl FnOnce(&mut Decoder<'_>, &YamlNode) -> Option<T>,
) -> Result<T, Vec<Diagnostic>> {
    let mut diagnostics = Vec::new();
    if let Some(found) = check_file_size(file, text.len()) {
        return Err(vec![found]);
    }
    let documents = yaml::read(file, text, &mut diagnostics);
    let empty = YamlNode {
        span: Span::default(),
        value: YamlValue::Scalar {
            text: String::new(),
            plain: true,
        },
    };
    if let Some(second) = documents.roots.get(1) {
        let message = "found a second document, expected one";
        let span = Span::point(second.span.start);
        diagnostics.push(Diagnostic::at(Class::Shape, file, span, message));
    }
    let mut decoded = None;
    if !documents.broken {
        let mut decoder = Decoder {
            file,
            kind,
            mode,
            diagnostics: &mut diagnostics,
        };
        decoded = decode(&mut decoder, documents.roots.first().unwrap_or(&empty));
    }
    match decoded {
        Some(decoded) if diagnostics.is_empty() => Ok(decoded),
        _ => {
            sort(&mut diagnostics);
            Err(diagnostics)
        }
    }
}
