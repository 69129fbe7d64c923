//! `katcall cp`: copies a file or folder into a container or out of it, as a tar stream through
//! `exec`.
//!
//! A stream from a container is not trusted: only regular files and folders are taken from it, each
//! below the named place, and none through a link.

mod pack;
mod unpack;

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    CliSession,
    args::CpArgs,
    errors::CliError,
    output::plain,
    references::{self, INSTANCES},
    target,
    target::InstanceRef,
};
use kat_client::{ApiRefusal, ClientError, SessionInput};
use kat_types::{
    api::ExecRequest,
    encoding::frames::{InputFrame, OutputFrame},
};
use unpack::SkippedEntry;

/// Pieces of the stream that are buffered.
const BUFFER: usize = 16;
/// Most bytes that are kept of the standard error of the container's tar.
const MOST_WORDS: usize = 4096;

/// One side of a copy: a local path or a path in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopyEndpoint {
    Here(PathBuf),
    /// In the container of an instance, or of one of a workload's instances.
    There {
        /// A reference.
        name: String,
        path: String,
    },
}

/// Parses `PATH` or `[KIND/][NAMESPACE/]NAME:/PATH`. A local path with a colon is written with `./`
/// before it.
pub(crate) fn parse_place(text: &str) -> Result<CopyEndpoint, String> {
    match text.split_once(':') {
        Some((name, path)) if is_reference(name, path) => {
            if !path.starts_with('/') {
                return Err(format!(
                    "`{text}`: a path in a container begins with /, such as {name}:/{path}"
                ));
            }
            Ok(CopyEndpoint::There {
                name: name.to_owned(),
                path: path.to_owned(),
            })
        }
        _ if text.is_empty() => Err("the path is empty".to_owned()),
        _ => Ok(CopyEndpoint::Here(PathBuf::from(text))),
    }
}

/// Whether the part before a colon names an instance. A local path may have slashes there, too, but
/// then what follows the colon does not begin with one.
fn is_reference(name: &str, path: &str) -> bool {
    match name.contains('/') {
        false => !name.is_empty(),
        true => !name.starts_with(['.', '/', '~']) && path.starts_with('/'),
    }
}

/// Splits a path in a container into folder and name.
fn split(path: &str) -> Result<(&str, &str), CliError> {
    let whole = path.trim_end_matches('/');
    let (folder, name) = whole.rsplit_once('/').unwrap_or(("", whole));
    if name.is_empty() || name == "." || name == ".." {
        return Err(CliError::usage(format!(
            "`{path}` names no file or folder of its own"
        )));
    }
    Ok((if folder.is_empty() { "/" } else { folder }, name))
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &CpArgs) -> Result<(), CliError> {
    let target = async |name: &str| {
        let object = references::one(name, INSTANCES, &arguments.namespace)?;
        target::find(session, &object).await
    };
    match (&arguments.source, &arguments.target) {
        (CopyEndpoint::Here(source), CopyEndpoint::There { name, path }) => {
            let target = target(name).await?;
            into(session, &target, source, path).await
        }
        (CopyEndpoint::There { name, path }, CopyEndpoint::Here(place)) => {
            let target = target(name).await?;
            out_of(session, &target, path, place).await
        }
        _ => Err(CliError::usage(
            "one side is here and the other in a container: NAME:/PATH",
        )),
    }
}

async fn exec(
    session: &CliSession<'_>,
    target: &InstanceRef,
    command: Vec<String>,
    stdin: bool,
) -> Result<(SessionInput, kat_client::SessionOutput), ClientError> {
    let request = ExecRequest {
        command,
        stdin,
        ..ExecRequest::default()
    };
    let client = &session.client;
    client
        .exec(&target.namespace, &target.workload, &target.id, &request)
        .await
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Copies into a container: into the folder where the path ends with `/`, otherwise under the
/// path's own name.
async fn into(
    session: &CliSession<'_>,
    target: &InstanceRef,
    source: &Path,
    path: &str,
) -> Result<(), CliError> {
    let metadata = std::fs::symlink_metadata(source).map_err(|error| here(source, &error))?;
    if !metadata.is_dir() && !metadata.is_file() {
        return Err(CliError::failed(format!(
            "`{}` is neither a file nor a folder",
            source.display()
        )));
    }
    let own = source.file_name().map(|name| name.to_string_lossy());
    let (folder, name) = match own {
        Some(own) if path.ends_with('/') => (path, own.into_owned()),
        _ => {
            let (folder, name) = split(path)?;
            (folder, name.to_owned())
        }
    };
    // Owner and time are not copied: tar sets those of the container's user and the present time.
    let command = words(&["tar", "-x", "-o", "-m", "-f", "-", "-C", folder]);
    let (sending, mut receiving) = exec(session, target, command, true).await?;
    let (pieces, mut packed) = mpsc::channel(BUFFER);
    let from = source.to_owned();
    let packing = tokio::task::spawn_blocking(move || pack::pack(&from, &name, pieces));
    let send = async {
        while let Some(piece) = packed.recv().await {
            if !sending.send(&InputFrame::Data(piece)).await {
                return;
            }
        }
        sending.send(&InputFrame::End).await;
    };
    let mut said = Vec::new();
    let hear = async {
        loop {
            match receiving.next().await? {
                OutputFrame::Data(_) => {}
                OutputFrame::Error(text) => append_bounded(&mut said, &text),
                OutputFrame::Exit(code) => return Ok(code),
                OutputFrame::Failed(body) => return Err(refused(*body)),
            }
        }
    };
    // The container's tar may end before it has read everything, and then its output has the
    // reason.
    let code = tokio::select! {
        code = hear => code?,
        code = async { send.await; std::future::pending::<Result<u8, ClientError>>().await } => code?,
    };
    drop(packed);
    match packing.await {
        // Otherwise the container's tar has ended first, and its output has the reason.
        Ok(Err(error)) if code == 0 || error.kind() != io::ErrorKind::BrokenPipe => {
            Err(here(source, &error))
        }
        _ => tar_result(code, &said, target),
    }
}

/// Copies out of a container: into the place where it is a folder, otherwise under the place's own
/// name.
async fn out_of(
    session: &CliSession<'_>,
    target: &InstanceRef,
    path: &str,
    place: &Path,
) -> Result<(), CliError> {
    let (folder, name) = split(path)?;
    let inside = place.is_dir() || place.as_os_str().as_encoded_bytes().ends_with(b"/");
    let place = if inside {
        place.join(name)
    } else {
        place.to_owned()
    };
    let command = words(&["tar", "-c", "-f", "-", "-C", folder, "--", name]);
    let (_sending, mut receiving) = exec(session, target, command, false).await?;
    let (sender, pieces) = mpsc::channel::<Bytes>(BUFFER);
    let (top, to) = (name.to_owned(), place.clone());
    let mut unpacking = tokio::task::spawn_blocking(move || unpack::unpack(pieces, &top, &to));
    let mut said = Vec::new();
    let code = loop {
        match receiving.next().await? {
            OutputFrame::Data(data) => {
                if sender.send(data).await.is_err() {
                    break None;
                }
            }
            OutputFrame::Error(text) => append_bounded(&mut said, &text),
            OutputFrame::Exit(code) => break Some(code),
            OutputFrame::Failed(body) => return Err(refused(*body).into()),
        }
    };
    drop(sender);
    let unpacked = (&mut unpacking).await;
    if let Some(code) = code.filter(|code| *code != 0) {
        return tar_result(code, &said, target);
    }
    let left_out = unpacked
        .map_err(|error| CliError::failed(error.to_string()))?
        .map_err(|error| here(&place, &error))?;
    if let Some(one) = left_out.iter().find(|one| one.named) {
        return Err(not_copied(one, path, target));
    }
    for SkippedEntry { name, what, .. } in left_out {
        let name = plain(&name);
        session
            .console
            .warning(&format!("`{name}` was left out: it is {what}"));
    }
    Ok(())
}

/// The error where the named file itself could not be copied.
fn not_copied(one: &SkippedEntry, path: &str, target: &InstanceRef) -> CliError {
    let InstanceRef { namespace, id, .. } = target;
    CliError::failed(format!("`{path}` was not copied: it is {}", one.what)).hinted(format!(
        "only files and folders are; of a link, `katcall exec {id} -n {namespace} -- readlink -f {path}` says where it leads"
    ))
}

fn here(path: &Path, error: &io::Error) -> CliError {
    CliError::failed(format!("`{}`: {error}", path.display()))
}

fn refused(body: kat_types::api::ErrorBody) -> ClientError {
    ClientError::Refused(Box::new(ApiRefusal::of_stream(body)))
}

fn append_bounded(said: &mut Vec<u8>, text: &[u8]) {
    let room = MOST_WORDS.saturating_sub(said.len());
    said.extend_from_slice(text.get(..room).unwrap_or(text));
}

/// The result of the container's tar.
fn tar_result(code: u8, said: &[u8], target: &InstanceRef) -> Result<(), CliError> {
    if code == 0 {
        return Ok(());
    }
    let said = String::from_utf8_lossy(said);
    let said: String = said
        .chars()
        .filter(|letter| !letter.is_control() || *letter == '\n')
        .collect();
    if code == 126 || code == 127 {
        return Err(CliError::failed(format!(
            "there is no `tar` in the container of `{}`",
            target.id
        ))
        .hinted("`katcall exec -i` can pipe a file into a program that is there"));
    }
    Err(CliError::failed(format!(
        "tar in the container of `{}` ended with {code}: {}",
        target.id,
        said.trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_here_or_in_a_container() {
        let there = |name: &str, path: &str| {
            Ok(CopyEndpoint::There {
                name: name.to_owned(),
                path: path.to_owned(),
            })
        };
        assert_eq!(parse_place("web:/tmp/x"), there("web", "/tmp/x"));
        assert_eq!(parse_place("web-ab12c:/"), there("web-ab12c", "/"));
        assert_eq!(parse_place("shop/web:/tmp/x"), there("shop/web", "/tmp/x"));
        assert_eq!(parse_place("wl/shop/web:/x"), there("wl/shop/web", "/x"));
        for local in ["x", "./a:b", "/a:b", "../x/", "a/b:c", "./a/b:/c", "/a:/b"] {
            assert_eq!(
                parse_place(local),
                Ok(CopyEndpoint::Here(local.into())),
                "{local}"
            );
        }
        for wrong in ["", "web:x", "web:"] {
            assert!(parse_place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_copied_is_a_failure() {
        let link = SkippedEntry {
            name: "sh".to_owned(),
            what: "a link",
            named: true,
        };
        let target = InstanceRef {
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            id: "web-abcde".to_owned(),
        };
        let error = not_copied(&link, "/bin/sh", &target);
        assert_eq!(error.exit_code(), 1);
        assert_eq!(error.to_string(), "`/bin/sh` was not copied: it is a link");
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("exec web-abcde -n shop -- readlink -f /bin/sh"),
            "{hint}"
        );
    }

    #[test]
    fn a_path_has_a_folder_and_a_name() {
        for (path, expected) in [
            ("/etc/hosts", ("/etc", "hosts")),
            ("/etc/", ("/", "etc")),
            ("/a/b/c/", ("/a/b", "c")),
        ] {
            assert_eq!(split(path).unwrap(), expected, "{path}");
        }
        for wrong in ["/", "//", "/a/..", "/."] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }
}
