//! `katcall export`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{
    output_folder::{self, ExistingFiles, OutputFile},
    stored_files::{self, StoredWorkloadArgs},
};
use crate::{
    CliSession,
    console::Console,
    errors::CliError,
    output::{self, plain},
};
use kat_bundle::join_stream;

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    which: StoredWorkloadArgs,
    /// Write the files into this folder, readable by you alone, instead of printing them
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long, requires = "output")]
    force: bool,
    /// Generation from `katcall history` [default: the present one]
    #[arg(long, value_name = "GENERATION")]
    generation: Option<u64>,
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &ExportArgs) -> Result<(), CliError> {
    let workload = arguments.which.workload()?;
    let stored = stored_files::fetch(session, &workload, arguments.generation).await?;
    let Some(folder) = &arguments.output else {
        let stream = join_stream(&stored.files).map_err(|name| {
            CliError::failed(format!(
                "`{}` cannot be printed among YAML documents",
                plain(&name)
            ))
            .hinted("`-o DIR` writes all files into a folder")
        })?;
        return output::foreign_lines(session.console, &stream);
    };
    let files = output_folder::files_of(&stored.files)?;
    let existing = match arguments.force {
        true => ExistingFiles::Replace,
        false => ExistingFiles::Refuse {
            hint: "name another folder, or replace the files with `--force`",
        },
    };
    write_named(session.console, folder, &files, existing)
}

/// Writes files, prints their paths, and warns of other files that an apply would send.
pub(super) fn write_named(
    console: &Console,
    folder: &Path,
    files: &[OutputFile],
    existing: ExistingFiles,
) -> Result<(), CliError> {
    for path in output_folder::write(folder, files, existing)? {
        console.line(&plain(&path.display().to_string()))?;
    }
    for other in output_folder::other_kat_files(folder, files) {
        console.warning(&format!(
            "`{}` was there before, and an apply of the folder sends it too",
            plain(&folder.join(other).display().to_string())
        ));
    }
    Ok(())
}
