//! `katcall run` and `katcall new`: a workload of an image and a few options.

mod args;
mod env_file;
mod files;

use std::path::{Path, PathBuf};

use tokio::time::Instant;

use super::{
    apply::{
        explain,
        local::{self, PreparedFolder},
    },
    export::write_named,
    job,
    job::AwaitedRun,
    output_folder::{self, ExistingFiles, OutputFile},
};
use crate::{
    CliSession, console::Console, errors::CliError, output::plain, wait, wait::AwaitedWorkload,
};
use args::WorkloadOptions;
use files::{WorkloadSketch, name_of_image};
use kat_bundle::Diagnostic;
use kat_client::ClientError;
use kat_types::api::WriteOutcome;

pub(crate) use args::{NewArgs, RunArgs};

/// The field that the argument of the image is written to.
const IMAGE_FIELD: &str = "spec.source.image";
const ANOTHER_FOLDER: &str = "name a folder that has no such files";

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    console: &Console,
    arguments: &RunArgs,
) -> Result<u8, CliError> {
    let RunArgs { image, options, .. } = arguments;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => name_of_image(image).ok_or_else(|| {
            CliError::usage(format!("`{}` gives no name for a workload", plain(image)))
                .hinted("`--name NAME` gives one")
        })?,
    };
    let made = MadeWorkload::of(&name, image, options, console)?;
    if let Some(folder) = &arguments.save {
        output_folder::check_free(folder, &made.files, ANOTHER_FOLDER)?;
    }
    let session = session()?;
    let namespace = &options.namespace.namespace;
    let archive = made.prepared.archive.clone();
    let created = session.client.create_workload(namespace, archive).await;
    let result = created.map_err(|error| {
        image_mistake(&error).unwrap_or_else(|| explain(error.into(), &made.prepared, console))
    })?;
    if result.outcome == WriteOutcome::Unchanged {
        return Err(CliError::failed(format!(
            "the workload `{namespace}/{name}` exists already, with the same content"
        ))
        .hinted(format!(
            "`katcall edit {namespace}/{name}` changes it; `--name` creates another one"
        )));
    }
    console.line(&format!("workload/{name} {}", result.outcome))?;
    console.warnings(&result.warnings);
    if let Some(folder) = &arguments.save {
        made.write(console, folder).map_err(|error| {
            error.hinted(format!(
                "the workload is created; `katcall export {namespace}/{name} -o DIR` writes its files"
            ))
        })?;
    }
    if arguments.wait {
        let target = AwaitedWorkload {
            namespace: namespace.clone(),
            name,
            uid: result.metadata.uid,
            generation: result.metadata.generation,
        };
        let started = Instant::now();
        if options.job {
            // A new Job begins with its run 1.
            let run = AwaitedRun {
                namespace: target.namespace,
                workload: target.name,
                number: 1,
            };
            return job::until_over(&session, &run, started + arguments.timeout).await;
        }
        wait::until_running(&session, target.clone(), started, arguments.timeout).await?;
        wait::until_certificates(&session, &target, started, arguments.timeout).await?;
    }
    Ok(0)
}

/// The mistake that the server found in the image alone: the user wrote an argument for it, and no file.
fn image_mistake(error: &ClientError) -> Option<CliError> {
    let ClientError::Refused(refusal) = error else {
        return None;
    };
    let [detail] = refusal.body.details.as_slice() else {
        return None;
    };
    let mistake: Diagnostic = serde_json::from_value(detail.clone()).ok()?;
    if mistake.path != IMAGE_FIELD {
        return None;
    }
    let error = CliError::failed(format!("<IMAGE>: {}", plain(&mistake.message)));
    Some(match mistake.hint {
        Some(hint) => error.hinted(plain(&hint)),
        None => error,
    })
}

pub(crate) fn new(console: &Console, arguments: &NewArgs) -> Result<(), CliError> {
    let NewArgs {
        name,
        image,
        options,
        folder,
    } = arguments;
    let made = MadeWorkload::of(name, image, options, console)?;
    let folder = folder.clone().unwrap_or_else(|| PathBuf::from(name));
    made.write(console, &folder)?;
    console.hint(&format!(
        "`katcall apply {} --wait` creates the workload",
        plain(&folder.display().to_string())
    ));
    Ok(())
}

/// The checked files of a workload that is made of options.
struct MadeWorkload {
    prepared: PreparedFolder,
    files: Vec<OutputFile>,
}

impl MadeWorkload {
    fn of(
        name: &str,
        image: &str,
        options: &WorkloadOptions,
        console: &Console,
    ) -> Result<Self, CliError> {
        if options.route.is_some() && options.ports.is_empty() {
            return Err(CliError::usage("`--route` needs a port to forward to")
                .hinted("`-p PORT` names the port of the container"));
        }
        let sketch = WorkloadSketch {
            name: name.to_owned(),
            namespace: options.namespace.namespace.clone(),
            image: image.to_owned(),
            ports: options.ports.clone(),
            env: env_file::variables(options, &|name| std::env::var_os(name))?,
            mounts: options.mounts.clone(),
            route: options.route.clone(),
            node: options.node.clone(),
            replicas: options.replicas.unwrap_or(1),
            job: options.job,
            command: options.command.clone(),
        };
        let files = sketch.files();
        // They are parsed as any folder is: a value that is not valid is refused at its place.
        let prepared = local::prepare_made(name, &files, console.error_colour)?;
        Ok(Self {
            prepared,
            files: output_folder::files_of(&files)?,
        })
    }

    fn write(&self, console: &Console, folder: &Path) -> Result<(), CliError> {
        let existing = ExistingFiles::Refuse {
            hint: ANOTHER_FOLDER,
        };
        write_named(console, folder, &self.files, existing)
    }
}
