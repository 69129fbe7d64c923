//! `katcall diff`: how the files of folders differ from the stored ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use clap::Args;
use similar::TextDiff;

use super::{
    apply::local::{FolderObject, FolderUse, PreparedFolder, prepare_all},
    output_folder::{self, OutputFile},
    plan::CHANGES,
    stored_files::{self, StoredWorkload},
};
use crate::{
    CliSession,
    args::FolderArgs,
    console::{Console, paint},
    errors::CliError,
    output::{self, plain},
};
use kat_bundle::SourceFile;

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// After this time a difference is not made any shorter.
const LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    folders: FolderArgs,
}

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    console: &Console,
    arguments: &DiffArgs,
) -> Result<u8, CliError> {
    // Only names are needed: files with fields that KAT does not know can be compared too.
    let paths = arguments.folders.paths();
    let folders = prepare_all(&paths, FolderUse::Delete, console.error_colour)?;
    let session = session()?;
    let mut same = true;
    for folder in &folders {
        let workload = folder.contents.iter().find_map(|content| match content {
            FolderObject::Workload { namespace, name } => Some(StoredWorkload {
                namespace: namespace.clone(),
                name: name.clone(),
            }),
            FolderObject::Namespace(_) | FolderObject::Route(_) => None,
        });
        let Some(workload) = workload else {
            let path = plain(&folder.path);
            console.note(&format!("`{path}` has no workload, and is not compared"));
            continue;
        };
        let text = of_folder(&session, folder, &workload).await?;
        same &= text.is_empty();
        output::foreign_lines(console, &text)?;
    }
    Ok(if same { 0 } else { CHANGES })
}

async fn of_folder(
    session: &CliSession<'_>,
    folder: &PreparedFolder,
    workload: &StoredWorkload,
) -> Result<String, CliError> {
    let stored = match stored_files::fetch(session, workload, None).await {
        Ok(stored) => stored.files,
        Err(error) if error.is_not_found() => {
            let StoredWorkload { namespace, name } = workload;
            session
                .console
                .note(&format!("workload {namespace}/{name} does not exist"));
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let present: Vec<SourceFile> = folder
        .sources
        .iter()
        .map(|(name, text)| SourceFile {
            name: name.clone(),
            text: text.clone(),
        })
        .collect();
    let stored = output_folder::files_of(&stored)?;
    let present = output_folder::files_of(&present)?;
    Ok(difference(
        &folder.path,
        &stored,
        &present,
        session.console.colour,
    ))
}

/// The files that differ, each as `diff -u` shows it; empty if all are the same.
fn difference(folder: &str, stored: &[OutputFile], present: &[OutputFile], colour: bool) -> String {
    let by_path = |files: &[OutputFile]| -> BTreeMap<String, OutputFile> {
        let files = files.iter();
        files
            .map(|file| (file.path.clone(), file.clone()))
            .collect()
    };
    let (before, after) = (by_path(stored), by_path(present));
    let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let folder = folder.trim_end_matches('/');
    let mut text = String::new();
    for path in paths {
        let (old, new) = (before.get(path), after.get(path));
        if old == new {
            continue;
        }
        let title = |place: &str, file: Option<&OutputFile>| match file {
            Some(_) => format!("{place}/{path}"),
            None => "/dev/null".to_owned(),
        };
        let titles = (title("stored", old), title(folder, new));
        let executable = |file: Option<&OutputFile>| file.is_some_and(|file| file.executable);
        if old.is_some() && new.is_some() && executable(old) != executable(new) {
            let word = match executable(new) {
                true => "is now executable",
                false => "is no longer executable",
            };
            text.push_str(&format!("{} {word}\n", titles.1));
        }
        match (content(old), content(new)) {
            (Some(left), Some(right)) if left == right => {}
            (Some(left), Some(right)) => {
                let mut config = TextDiff::configure();
                let diff = config.timeout(LIMIT).diff_lines(left, right);
                let mut diff = diff.unified_diff();
                diff.context_radius(CONTEXT).header(&titles.0, &titles.1);
                text.push_str(&painted(&diff.to_string(), colour));
            }
            _ => text.push_str(&format!(
                "{} and {} differ, and are not text\n",
                titles.0, titles.1
            )),
        }
    }
    text
}

/// The text of a file, empty if there is no file; `None` if it is not text.
fn content(file: Option<&OutputFile>) -> Option<&str> {
    let Some(file) = file else { return Some("") };
    let text = std::str::from_utf8(&file.bytes).ok()?;
    (!text.contains('\0')).then_some(text)
}

/// Lines of a difference, with colours.
fn painted(diff: &str, colour: bool) -> String {
    let paint_line = |line: &str| {
        let style = match line.get(..1) {
            Some("+") => AnsiColor::Green.on_default(),
            Some("-") => AnsiColor::Red.on_default(),
            Some("@") => AnsiColor::Cyan.on_default(),
            _ => Style::new(),
        };
        paint(line, style, colour) + "\n"
    };
    diff.split_terminator('\n').map(paint_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, bytes: &[u8]) -> OutputFile {
        OutputFile {
            path: path.to_owned(),
            bytes: bytes.to_vec(),
            executable: path.ends_with(".sh"),
        }
    }

    #[test]
    fn what_differs_is_shown_as_diff_does() {
        let stored = [
            file("a.kat", b"one\ntwo\nthree"),
            file("gone.kat", b"x\n"),
            file("image.png", b"\0\xff"),
            file("run.sh", b"y\n"),
            file("same.kat", b"z\n"),
        ];
        let mut present = stored.to_vec();
        present[0].bytes = b"one\n2\nthree\n".to_vec();
        present[1] = file("new.kat", b"x\n");
        present[2].bytes.push(0);
        present[3].executable = false;
        assert_eq!(
            difference("web/", &stored, &present, false),
            "--- stored/a.kat
+++ web/a.kat
@@ -1,3 +1,3 @@
 one
-two
-three
\\ No newline at end of file
+2
+three
--- stored/gone.kat
+++ /dev/null
@@ -1 +0,0 @@
-x
stored/image.png and web/image.png differ, and are not text
--- /dev/null
+++ web/new.kat
@@ -0,0 +1 @@
+x
web/run.sh is no longer executable
"
        );
        assert_eq!(difference("web", &stored, &stored, true), "");
    }
}
