//! `katcall edit`: changes the stored files in an editor.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
};

use clap::Args;
use tempfile::TempDir;

use super::{
    apply::{
        explain,
        local::{FolderObject, FolderUse, PreparedFolder, prepare_all},
    },
    output_folder::{self, ExistingFiles},
    stored_files::{self, StoredFiles, StoredWorkload, StoredWorkloadArgs},
};
use crate::{
    CliSession, INTERRUPTED,
    console::Console,
    editor::{self, Editor},
    errors::CliError,
    output::plain,
};
use kat_bundle::{DocumentKind, SourceFile, read_folder};

/// The hint where nothing can be edited.
const INSTEAD: &str = "`katcall export NAME -o DIR`, change the files, and `katcall apply DIR`";

#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    #[command(flatten)]
    which: StoredWorkloadArgs,
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &EditArgs) -> Result<u8, CliError> {
    let editor = Editor::of_environment(INSTEAD)?;
    let workload = arguments.which.workload()?;
    let stored = stored_files::fetch(session, &workload, None).await?;
    let folder = editor::private_folder()
        .map_err(|error| CliError::failed(format!("no folder for the files: {error}")))?;
    let files = output_folder::files_of(&stored.files)?;
    output_folder::write(folder.path(), &files, ExistingFiles::Replace)?;
    let names = names_of(&stored.files);
    loop {
        let status = editor.open(folder.path(), &names).await?;
        let is_changed = read_folder(folder.path()).ok().as_ref() != Some(&stored.files);
        if !status.success() {
            let error = CliError::failed(format!("the editor ended with {status}"));
            return Err(kept_if(is_changed, session.console, folder, error));
        }
        if !is_changed {
            session
                .console
                .line(&format!("workload/{} unchanged", plain(&workload.name)))?;
            return Ok(0);
        }
        let applied = tokio::select! {
            applied = apply(session, folder.path(), &workload, &stored) => applied,
            _ = tokio::signal::ctrl_c() => {
                keep(session.console, folder);
                return Ok(INTERRUPTED);
            }
        };
        let error = match applied {
            Ok(()) => return Ok(0),
            Err(error) => error,
        };
        let is_mistake = matches!(error, CliError::Diagnostics { .. });
        if !is_mistake || !can_ask() {
            return Err(kept_if(true, session.console, folder, error));
        }
        session.console.error(&error);
        let asked = tokio::task::spawn_blocking(wants_again);
        let again = tokio::select! {
            again = asked => again.unwrap_or(false),
            _ = tokio::signal::ctrl_c() => false,
        };
        if !again {
            keep(session.console, folder);
            return Ok(1);
        }
    }
}

/// Applies the changed files if nobody else has changed the workload since they were read.
async fn apply(
    session: &CliSession<'_>,
    folder: &Path,
    workload: &StoredWorkload,
    stored: &StoredFiles,
) -> Result<(), CliError> {
    let console = session.console;
    let paths = [folder.to_owned()];
    let prepared = prepare_all(&paths, FolderUse::Apply, console.error_colour)?;
    let StoredWorkload { namespace, name } = workload;
    let [prepared] = prepared.as_slice() else {
        return Err(CliError::failed(
            "the files are no longer those of one workload",
        ));
    };
    let wanted = FolderObject::Workload {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    if !prepared.contents.contains(&wanted) {
        return Err(CliError::failed(format!(
            "the files are no longer those of workload {namespace}/{name}; nothing was done"
        ))
        .hinted("`katcall apply` with the folder creates a workload of another name"));
    }
    for content in &prepared.contents {
        if let FolderObject::Namespace(namespace) = content
            && is_file_changed(DocumentKind::Namespace.file(), prepared, stored)
        {
            let made = session.client.create_namespace(namespace, false).await?;
            let name = plain(&made.metadata.name);
            console.line(&format!("namespace/{name} {}", made.outcome))?;
        }
    }
    let archive = prepared.archive.clone();
    let client = &session.client;
    let version = Some(stored.version.as_str());
    let applied = client.apply(namespace, name, archive, false, version).await;
    match applied {
        Ok(applied) => {
            let result = applied.result;
            console.line(&format!("workload/{name} {}", result.outcome))?;
            console.warnings(&result.warnings);
            Ok(())
        }
        Err(error) if error.status() == Some(412) => Err(CliError::failed(format!(
            "workload {namespace}/{name} was changed or deleted meanwhile; nothing was done"
        ))
        .hinted("`katcall diff` with the kept folder shows what differs, and `katcall apply` with it overwrites the other change")),
        Err(error) => Err(explain(error.into(), prepared, console)),
    }
}

fn is_file_changed(name: &str, prepared: &PreparedFolder, stored: &StoredFiles) -> bool {
    let before = stored.files.iter().find(|file| file.name == name);
    before.map(|file| &file.text) != prepared.sources.get(name)
}

/// The `*.kat` files in the order in which they are edited.
fn names_of(files: &[SourceFile]) -> Vec<String> {
    let order = |name: &str| {
        let mut kinds = DocumentKind::IN_BUNDLE.iter();
        kinds.position(|kind| kind.file() == name)
    };
    let mut names: Vec<String> = files
        .iter()
        .map(|file| file.name.clone())
        .filter(|name| name.ends_with(".kat"))
        .collect();
    names.sort_by_key(|name| order(name).unwrap_or(usize::MAX));
    names
}

/// Whether a person can answer a question.
fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn wants_again() -> bool {
    let _ = write!(io::stderr(), "open the editor again? [Y/n] ");
    let mut answer = String::new();
    match io::stdin().read_line(&mut answer) {
        Ok(read) => read > 0 && matches!(answer.trim(), "" | "y" | "Y" | "yes"),
        Err(_) => false,
    }
}

fn kept_if(is_changed: bool, console: &Console, folder: TempDir, error: CliError) -> CliError {
    if is_changed {
        keep(console, folder);
    }
    error
}

/// Leaves the changed files where they are, and says where.
fn keep(console: &Console, folder: TempDir) {
    let path = folder.keep();
    console.note(&format!(
        "the changed files are kept in {}",
        plain(&path.display().to_string())
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_is_edited_first() {
        let file = |name: &str| SourceFile {
            name: name.to_owned(),
            text: String::new(),
        };
        let files = [
            "VirtualLoadBalancer.kat",
            "a.kat",
            kat_bundle::CARRIED,
            "namespace.kat",
            "workload.kat",
        ]
        .map(file);
        assert_eq!(
            names_of(&files),
            [
                "workload.kat",
                "VirtualLoadBalancer.kat",
                "namespace.kat",
                "a.kat"
            ]
        );
    }
}
