//! Reads a folder, an archive or stdin before it is sent: its files, the objects in them, the
//! archive, and all mistakes that can be found without a cluster.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde_json::Value;

use super::{expand, start_order};
use crate::{errors::CliError, output};
use kat_bundle as bundle;
use kat_bundle::{Bundle, DecodeMode, Diagnostic, MAX_BUNDLE, SourceFile};
use kat_types::resource::{Namespace, Route, Workload};

/// An object that a folder describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FolderObject {
    Workload {
        namespace: String,
        name: String,
    },
    Namespace(Box<Namespace>),
    /// A route to something outside KAT.
    Route(Box<Route>),
}

/// A folder that can be sent.
#[derive(Debug, Clone)]
pub(crate) struct PreparedFolder {
    /// Path as the user wrote it.
    pub(crate) path: String,
    /// The objects; a namespace comes before the workload in it.
    pub(crate) contents: Vec<FolderObject>,
    /// The gzipped tar archive.
    pub(crate) archive: Bytes,
    /// Name and text of each file.
    pub(crate) sources: BTreeMap<String, String>,
    /// Namespace and name of each workload that the workload in it starts after.
    pub(crate) after: Vec<(String, String)>,
}

/// What the folders are read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FolderUse {
    /// All content is checked.
    Apply,
    /// Only names are needed.
    Delete,
}

/// Reads all folders and archives; the mistakes of all of them are reported together.
pub(crate) fn prepare_all(
    paths: &[PathBuf],
    purpose: FolderUse,
    colour: bool,
) -> Result<Vec<PreparedFolder>, CliError> {
    let mut folders = Vec::new();
    let mut excerpts = Vec::new();
    let mut wrong = Vec::new();
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        return Err(CliError::usage(
            "`-` is there twice, and stdin can be read once",
        ));
    }
    let paths = paths.iter().flat_map(|path| match is_stdin(path) {
        true => vec![path.clone()],
        false => expand::folders(path),
    });
    for path in paths {
        match prepare(&path, purpose)? {
            Ok(folder) => folders.push(folder),
            Err((diagnostics, sources)) => {
                let shown = shown_path(&path);
                if let Some(error) = view_refusal(&shown, &sources) {
                    return Err(error);
                }
                excerpts.extend(
                    diagnostics
                        .into_iter()
                        .map(|diagnostic| draw(diagnostic, &shown, &sources, colour)),
                );
                wrong.push(format!("`{shown}`"));
            }
        }
    }
    if wrong.is_empty() {
        described_once(&folders)?;
        return Ok(start_order::in_order(folders));
    }
    Err(mistakes(&excerpts, &wrong.join(", ")))
}

/// Checks that no two folders describe the same workload.
fn described_once(folders: &[PreparedFolder]) -> Result<(), CliError> {
    let mut known: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for folder in folders {
        for content in &folder.contents {
            let FolderObject::Workload { namespace, name } = content else {
                continue;
            };
            if let Some(other) = known.insert((namespace, name), &folder.path) {
                return Err(CliError::usage(format!(
                    "`{other}` and `{}` are both about the workload {namespace}/{name}",
                    folder.path
                )));
            }
        }
    }
    Ok(())
}

/// An error with excerpts of the mistakes and a summary line.
pub(crate) fn mistakes(excerpts: &[String], place: &str) -> CliError {
    let word = if excerpts.len() == 1 {
        "mistake"
    } else {
        "mistakes"
    };
    CliError::Diagnostics {
        text: excerpts.join("\n\n") + "\n",
        message: format!("{} {word} in {place}; nothing was done", excerpts.len()),
    }
}

/// The name that `bundle` uses for an archive as a whole.
const ARCHIVE: &str = "archive";

/// The path that stands for stdin; a folder of this name is `./-`.
const STDIN: &str = "-";

fn is_stdin(path: &Path) -> bool {
    path == Path::new(STDIN)
}

/// The path in messages.
fn shown_path(path: &Path) -> String {
    match is_stdin(path) {
        true => "stdin".to_owned(),
        false => path.display().to_string(),
    }
}

/// The error for a view (`katcall get -o yaml`) in place of files: it has masked values, and
/// applying it would store them.
fn view_refusal(path: &str, sources: &SourceTexts) -> Option<CliError> {
    let shown = sources
        .values()
        .find_map(|text| bundle::shown_object(text))?;
    let error = CliError::failed(format!(
        "`{path}` has what `katcall get` shows, which cannot be applied: values are masked, and fields of the cluster are among it"
    ));
    let name = shown.name.map(|name| match shown.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name,
    });
    let name = name.map_or_else(|| "NAME".to_owned(), |name| output::plain(&name));
    Some(error.hinted(format!(
        "`katcall export {name}` prints the files of a workload, and `katcall edit {name}` changes them"
    )))
}

type SourceTexts = BTreeMap<String, String>;
/// Mistakes of one folder, with the texts of its files.
type FolderMistakes = (Vec<Diagnostic>, SourceTexts);

fn prepare(
    path: &Path,
    purpose: FolderUse,
) -> Result<Result<PreparedFolder, FolderMistakes>, CliError> {
    let shown = shown_path(path);
    let failed = |reason: String| CliError::failed(format!("`{shown}`: {reason}"));
    if is_stdin(path) {
        if io::stdin().is_terminal() {
            return Err(CliError::usage("`-` reads stdin, which is a terminal")
                .hinted("such as `katcall export web | katcall apply -f -`"));
        }
        let piped = read_to_limit(io::stdin().lock()).map_err(|error| failed(words(&error)))?;
        if piped.len() > MAX_BUNDLE {
            let message = format!("it has more than {MAX_BUNDLE} bytes");
            return Err(failed(message));
        }
        return match bundle::read_piped(piped) {
            Ok(files) => prepare_files(shown, &files, None, purpose),
            Err(diagnostics) => Ok(Err((diagnostics, SourceTexts::new()))),
        };
    }
    let metadata = fs::metadata(path).map_err(|error| failed(words(&error)))?;
    let (files, archive) = if metadata.is_dir() {
        (bundle::read_folder(path), None)
    } else if path.extension().is_some_and(|extension| extension == "kat") {
        return Err(one_file(path));
    } else {
        let archive = File::open(path).and_then(read_to_limit);
        let archive = archive.map_err(|error| failed(words(&error)))?;
        (bundle::read_archive(&archive), Some(archive))
    };
    match files {
        Ok(files) => prepare_files(shown, &files, archive, purpose),
        Err(diagnostics) => Ok(Err((diagnostics, SourceTexts::new()))),
    }
}

/// Checks files that katcall made or was sent, and packs them; `shown` stands for their folder in
/// messages.
pub(crate) fn prepare_made(
    shown: &str,
    files: &[SourceFile],
    colour: bool,
) -> Result<PreparedFolder, CliError> {
    match prepare_files(shown.to_owned(), files, None, FolderUse::Apply)? {
        Ok(folder) => Ok(folder),
        Err((diagnostics, sources)) => {
            let excerpts: Vec<String> = diagnostics
                .into_iter()
                .map(|diagnostic| draw(diagnostic, shown, &sources, colour))
                .collect();
            Err(mistakes(&excerpts, &format!("`{shown}`")))
        }
    }
}

/// Checks files, and packs them unless they came as an archive.
fn prepare_files(
    shown: String,
    files: &[SourceFile],
    archive: Option<Vec<u8>>,
    purpose: FolderUse,
) -> Result<Result<PreparedFolder, FolderMistakes>, CliError> {
    let sources: SourceTexts = files
        .iter()
        .map(|file| (file.name.clone(), file.text.clone()))
        .collect();
    let bundle = match check(files, purpose) {
        Ok(bundle) => bundle,
        Err(diagnostics) => return Ok(Err((diagnostics, sources))),
    };
    let archive = match archive {
        Some(archive) => archive,
        None => bundle::pack(files)
            .map_err(|error| CliError::failed(format!("`{shown}`: {}", words(&error))))?,
    };
    Ok(Ok(PreparedFolder {
        path: shown,
        after: bundle.workload.as_ref().map_or_else(Vec::new, after),
        contents: contents(bundle),
        archive: archive.into(),
        sources,
    }))
}

fn check(files: &[SourceFile], purpose: FolderUse) -> Result<Bundle, Vec<Diagnostic>> {
    if purpose == FolderUse::Delete {
        return bundle::parse(files, DecodeMode::Stored);
    }
    let bundle = bundle::parse(files, DecodeMode::Strict)?;
    let not_yet = bundle::not_yet(&bundle);
    if not_yet.is_empty() {
        Ok(bundle)
    } else {
        Err(not_yet)
    }
}

fn after(workload: &Workload) -> Vec<(String, String)> {
    let namespace = &workload.metadata.namespace;
    let after = workload.spec.start_after.iter();
    after
        .map(|one| (namespace.clone(), one.workload.clone()))
        .collect()
}

fn contents(bundle: Bundle) -> Vec<FolderObject> {
    let namespace = bundle.namespace.map(Box::new).map(FolderObject::Namespace);
    let workload = bundle.workload.map(|workload| FolderObject::Workload {
        namespace: workload.metadata.namespace,
        name: workload.metadata.name,
    });
    let routes = bundle.routes.into_iter().map(Box::new);
    let routes = routes.map(FolderObject::Route);
    namespace
        .into_iter()
        .chain(routes)
        .chain(workload)
        .collect()
}

fn one_file(path: &Path) -> CliError {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    CliError::usage(format!("`{}` is one file of a workload", path.display()))
        .hinted(format!("name its folder: `-f {}`", folder.display()))
}

/// Reads up to one byte more than is allowed, which shows that it is too large.
fn read_to_limit(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_BUNDLE).unwrap_or(u64::MAX);
    source
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such folder or file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// Renders a mistake from the API's response, with the line that it is on.
pub(crate) fn excerpt(
    detail: &Value,
    path: &str,
    sources: &BTreeMap<String, String>,
    colour: bool,
) -> String {
    match serde_json::from_value::<Diagnostic>(detail.clone()) {
        Ok(mut diagnostic) => {
            diagnostic.message = output::plain(&diagnostic.message);
            diagnostic.path = output::plain(&diagnostic.path);
            diagnostic.hint = diagnostic.hint.map(|hint| output::plain(&hint));
            draw(diagnostic, path, sources, colour)
        }
        Err(_) => output::plain(&detail.to_string()),
    }
}

/// Renders a mistake; the file is shown below the path that the user gave.
fn draw(mut diagnostic: Diagnostic, path: &str, sources: &SourceTexts, colour: bool) -> String {
    let source = sources.get(&diagnostic.file).map_or("", String::as_str);
    if diagnostic.file == ARCHIVE {
        path.clone_into(&mut diagnostic.file);
    } else if diagnostic.file != path {
        let file = Path::new(path).join(&diagnostic.file);
        diagnostic.file = output::plain(&file.display().to_string());
    }
    bundle::render(&diagnostic, source, colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: &str = "apiVersion: kat.dws.rip/v1alpha1
kind: Workload
metadata:
  name: web
  namespace: shop
spec:
  type: Service
  source: {image: registry.lab/web:1}
  replicas: 1
  restartPolicy: {condition: Always}
  container: {name: app}
";
    const NAMESPACE: &str = "apiVersion: kat.dws.rip/v1alpha1\nkind: Namespace\nmetadata:\n  name: shop\n  labels: {team: a}\n";

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn prepared(path: &Path) -> PreparedFolder {
        let mut found = prepare_all(&[path.to_owned()], FolderUse::Apply, false).unwrap();
        found.remove(0)
    }

    #[test]
    fn a_folder_is_packed_and_its_archive_says_the_same() {
        let folder = folder(&[
            ("workload.kat", WORKLOAD),
            ("namespace.kat", NAMESPACE),
            ("notes.txt", "x"),
        ]);
        let first = prepared(folder.path());
        let [
            FolderObject::Namespace(namespace),
            FolderObject::Workload { name, .. },
        ] = &first.contents[..]
        else {
            panic!("the namespace comes first: {:?}", first.contents);
        };
        assert_eq!(namespace.metadata.labels["team"], "a");
        assert_eq!(name, "web");
        let names: Vec<&String> = first.sources.keys().collect();
        assert_eq!(names, ["namespace.kat", "workload.kat"]);

        let file = folder.path().join("web.tar.gz");
        fs::write(&file, &first.archive).unwrap();
        let again = prepared(&file);
        assert_eq!(again.contents, first.contents);
        assert_eq!(again.sources, first.sources);
        assert_eq!(prepared(folder.path()).archive, first.archive);
    }

    #[test]
    fn to_delete_only_the_names_count() {
        let text = WORKLOAD.replace("  replicas: 1\n", "  replicas: 1\n  future: {a: b}\n");
        let folder = folder(&[("workload.kat", &text)]);
        let paths = [folder.path().to_owned()];
        assert!(prepare_all(&paths, FolderUse::Apply, false).is_err());
        let found = prepare_all(&paths, FolderUse::Delete, false).unwrap();
        let wanted = FolderObject::Workload {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        assert_eq!(found[0].contents, [wanted]);
    }

    #[test]
    fn what_is_no_folder_is_named() {
        let folder = folder(&[("workload.kat", WORKLOAD), ("x.tar.gz", "no archive")]);
        let all = |name: &str| {
            prepare_all(&[folder.path().join(name)], FolderUse::Apply, false).unwrap_err()
        };
        assert_eq!(all("workload.kat").exit_code(), 2);
        assert_eq!(all("x.tar.gz").exit_code(), 1);
        let error = all("none").to_string();
        assert!(
            error.ends_with("there is no such folder or file"),
            "{error}"
        );
    }
}
