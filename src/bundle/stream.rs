//! The files of a workload as one stream of YAML documents: `katcall export` prints it, and
//! `katcall apply -f -` reads it.
//!
//! `---` begins each document, and a comment `# file: NAME` may follow it. The kind of a document
//! says which file it is: a `Workload` is `workload.kat`. So a stream holds files with the usual
//! names and one document each, and no files that volumes mount.

use super::{
    CARRIED, DocumentKind, SourceFile,
    archive::{is_plain_tar, read_archive, read_plain_tar, text},
    diagnostic::{Class, Diagnostic},
    yaml::{self, YamlNode, YamlValue, locate},
};

/// File name in diagnostics of the stream itself.
const STREAM: &str = "archive";
/// What the comment with the name of a file begins with.
const MARK: &str = "# file: ";

/// Reads what was sent through a pipe: an archive (tar, with or without gzip) or a stream of YAML
/// documents.
///
/// Errors: as [`read_archive`]; the texts are not checked further.
pub fn read_piped(bytes: Vec<u8>) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    if is_plain_tar(&bytes) {
        return read_plain_tar(&bytes);
    }
    if bytes.starts_with(&[0x1f, 0x8b]) || bytes.contains(&0) {
        return read_archive(&bytes);
    }
    split_stream(&text(STREAM, bytes).map_err(|found| vec![found])?)
}

/// The files in a stream of YAML documents.
///
/// A document whose kind is unknown, or comes a second time, has a name that no other file has, so
/// that [`super::parse`] reports it with its place.
///
/// Errors: a stream without a document.
pub fn split_stream(stream: &str) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    let stream = stream.strip_prefix('\u{feff}').unwrap_or(stream);
    let mut files: Vec<SourceFile> = Vec::new();
    for document in documents(stream) {
        let is_empty = |line: &str| line.is_empty() || line.starts_with('#');
        if document.lines().map(str::trim).all(is_empty) {
            continue;
        }
        let kind = root_of(&document).as_ref().and_then(kind_of);
        let usual = kind.map(DocumentKind::file);
        let is_free = |name: &&str| files.iter().all(|file| file.name != *name);
        let name = usual.filter(is_free).map_or_else(
            || format!("document-{}.kat", files.len() + 1),
            ToOwned::to_owned,
        );
        files.push(SourceFile {
            name,
            text: document,
        });
    }
    if files.is_empty() {
        let message = "no document is in the stream";
        let found = Diagnostic::of_file(Class::Missing, STREAM, message);
        return Err(vec![
            found.hint("it needs at least a document with `kind: Workload`"),
        ]);
    }
    files.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(files)
}

/// The texts between the lines that begin a document, without the comments that name files.
fn documents(stream: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    let mut begins = true;
    for line in stream.split_inclusive('\n') {
        let after = line
            .strip_prefix("---")
            .filter(|rest| rest.trim_start().is_empty() || rest.starts_with([' ', '\t']));
        let line = match after {
            Some(rest) => {
                documents.push(String::new());
                begins = true;
                rest.trim_start_matches([' ', '\t', '\r', '\n'])
            }
            None => line,
        };
        let names_file = begins && line.starts_with(MARK);
        if let Some(document) = documents.last_mut()
            && !names_file
        {
            document.push_str(line);
        }
        begins &= line.is_empty();
    }
    documents
}

/// The files as a stream that [`split_stream`] reads as the same files.
///
/// Errors: the name of the first file that no stream can hold.
pub fn join_stream(files: &[SourceFile]) -> Result<String, String> {
    let mut stream = String::new();
    for kind in DocumentKind::IN_BUNDLE {
        let Some(file) = files.iter().find(|file| file.name == kind.file()) else {
            continue;
        };
        stream.push_str(&format!("---\n{MARK}{}\n{}", file.name, file.text));
        if !file.text.ends_with('\n') {
            stream.push('\n');
        }
    }
    let read = split_stream(&stream).unwrap_or_default();
    let is_same = |file: &&SourceFile| {
        let mut found = read.iter().filter(|other| other.name == file.name);
        let text = |text: &str| text.strip_suffix('\n').unwrap_or(text).to_owned();
        found
            .next()
            .is_some_and(|other| text(&other.text) == text(&file.text))
    };
    let mut others = files.iter().filter(|file| !is_same(file));
    match others.next() {
        None => Ok(stream),
        Some(file) if file.name == CARRIED => Err("the files that its volumes mount".to_owned()),
        Some(file) => Err(file.name.clone()),
    }
}

fn root_of(text: &str) -> Option<YamlNode> {
    let documents = yaml::read("", text, &mut Vec::new());
    documents.roots.into_iter().find(|root| !root.is_null())
}

fn kind_of(root: &YamlNode) -> Option<DocumentKind> {
    DocumentKind::from_word(&text_at(root, "kind")?)
}

fn text_at(root: &YamlNode, path: &str) -> Option<String> {
    match &locate(root, path)?.0.value {
        YamlValue::Scalar { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// The object that a text shows as the API does (`katcall get -o yaml`), which is no file of a
/// workload: it has masked values, and fields that the cluster writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownObject {
    /// Its name; `None` for a list.
    pub name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
}

/// Recognises a view of an object, or a list of views.
pub fn shown_object(text: &str) -> Option<ShownObject> {
    let root = root_of(text)?;
    let has = |path: &str| locate(&root, path).is_some();
    let is_list = matches!(
        locate(&root, "items").map(|(node, _)| &node.value),
        Some(YamlValue::Sequence(_))
    );
    let is_item = has("kind") && (has("status") || has("metadata.resourceVersion"));
    match (is_item, is_list) {
        (true, _) => Some(ShownObject {
            name: text_at(&root, "metadata.name"),
            namespace: text_at(&root, "metadata.namespace"),
        }),
        (false, true) => Some(ShownObject::default()),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: &str = "# the shop's\napiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {name: web}\nspec: {x: \"--- y\"}\n";
    const BALANCER: &str = "kind: VirtualLoadBalancer\nspec:\n  ports: []  # none\n";

    fn file(name: &str, text: &str) -> SourceFile {
        SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_stream_is_read_as_the_files_that_it_was_made_of() {
        let files = [
            file("VirtualLoadBalancer.kat", BALANCER),
            file("workload.kat", WORKLOAD),
        ];
        let stream = join_stream(&files).unwrap();
        assert!(
            stream.starts_with("---\n# file: workload.kat\n# the shop's\n"),
            "the workload comes first: {stream}"
        );
        assert_eq!(split_stream(&stream).unwrap(), files);
        assert_eq!(join_stream(&split_stream(&stream).unwrap()), Ok(stream));
    }

    #[test]
    fn what_a_stream_cannot_hold_is_named() {
        for (other, text) in [
            ("web.kat", "kind: Namespace\n"),
            (
                "namespace.kat",
                "kind: Namespace\n---\nkind: JobDefinition\n",
            ),
            ("namespace.kat", "a: 1\n"),
            ("namespace.kat", "%YAML 1.2\n---\nkind: Namespace\n"),
        ] {
            let files = [file("workload.kat", WORKLOAD), file(other, text)];
            assert_eq!(join_stream(&files), Err(other.to_owned()), "{text}");
        }
        let carried = [file("workload.kat", WORKLOAD), file(CARRIED, "")];
        assert!(join_stream(&carried).is_err());
    }

    #[test]
    fn documents_have_the_names_of_their_kinds() {
        let names = |stream: &str| -> Vec<String> {
            let files = split_stream(stream).unwrap().into_iter();
            files.map(|file| file.name).collect()
        };
        assert_eq!(names(WORKLOAD), ["workload.kat"]);
        let both = format!("{WORKLOAD}---\n\n---  # next\n{BALANCER}---\n# end\n");
        assert_eq!(names(&both), ["VirtualLoadBalancer.kat", "workload.kat"]);
        assert_eq!(names("--- {kind: Workload}\n"), ["workload.kat"]);
        let crlf = format!("{WORKLOAD}---\n{BALANCER}").replace('\n', "\r\n");
        assert_eq!(names(&crlf), ["VirtualLoadBalancer.kat", "workload.kat"]);
        let twice = format!("{WORKLOAD}---\n{WORKLOAD}---\nkind: Else\n");
        assert_eq!(
            names(&twice),
            ["document-2.kat", "document-3.kat", "workload.kat"]
        );
        for empty in ["", "---\n", "# only a comment\n---\n\n"] {
            assert!(split_stream(empty).is_err(), "{empty:?}");
        }
    }

    #[test]
    fn a_view_is_told_from_a_file() {
        let view = "kind: Workload\nmetadata:\n  name: web\n  namespace: shop\n  uid: u\nspec: {}\nstatus: {phase: Running}\n";
        let shown = shown_object(view).unwrap();
        assert_eq!(shown.name.as_deref(), Some("web"));
        assert_eq!(shown.namespace.as_deref(), Some("shop"));
        let list = "items:\n- kind: Workload\nmetadata: {resourceVersion: \"7\"}\n";
        assert_eq!(shown_object(list), Some(ShownObject::default()));
        for file in [WORKLOAD, BALANCER, "", "a", "\u{1}"] {
            assert_eq!(shown_object(file), None, "{file:?}");
        }
    }

    #[test]
    fn a_pipe_brings_archives_and_documents() {
        let files = vec![file("workload.kat", WORKLOAD)];
        let packed = super::super::pack(&files).unwrap();
        assert_eq!(read_piped(packed.clone()).unwrap(), files);
        let mut tar = Vec::new();
        let mut decoder = flate2::bufread::GzDecoder::new(&packed[..]);
        std::io::Read::read_to_end(&mut decoder, &mut tar).unwrap();
        assert_eq!(read_piped(tar).unwrap(), files);
        assert_eq!(read_piped(WORKLOAD.into()).unwrap(), files);
        for wrong in [b"PK\x03\x04\0\0".to_vec(), vec![0xff, b'a'], Vec::new()] {
            assert!(read_piped(wrong.clone()).is_err(), "{wrong:?}");
        }
    }
}
