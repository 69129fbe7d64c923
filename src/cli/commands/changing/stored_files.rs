//! The files of a workload as the cluster keeps them.

use clap::Args;

use crate::{
    CliSession,
    args::NamespaceOption,
    commands::reading::get,
    errors::CliError,
    output::plain,
    references::{self, WORKLOADS},
};
use kat_bundle::{SourceFile, read_archive};
use kat_types::api::WorkloadItem;

/// Which workload.
#[derive(Debug, Clone, Args)]
pub(super) struct StoredWorkloadArgs {
    /// Workload, as NAME or NAMESPACE/NAME
    #[arg(value_name = "WORKLOAD")]
    name: String,
    #[command(flatten)]
    namespace: NamespaceOption,
}

/// A workload's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredWorkload {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl StoredWorkloadArgs {
    pub(super) fn workload(&self) -> Result<StoredWorkload, CliError> {
        let named = references::one(&self.name, WORKLOADS, &self.namespace)?;
        Ok(StoredWorkload {
            namespace: named.namespace,
            name: named.name,
        })
    }
}

/// What the cluster answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredFiles {
    pub(super) files: Vec<SourceFile>,
    /// The workload's resourceVersion, for the precondition of an apply.
    pub(super) version: String,
}

/// Reads the files of the present generation, or of a kept one.
pub(super) async fn fetch(
    session: &CliSession<'_>,
    workload: &StoredWorkload,
    generation: Option<u64>,
) -> Result<StoredFiles, CliError> {
    let StoredWorkload { namespace, name } = workload;
    let answer = session.client.source(namespace, name, generation).await;
    let source = match answer {
        Ok(source) => source,
        Err(error) if error.to_string().contains("no route ") => {
            return Err(CliError::failed(
                "the machine that leads has an earlier version of KAT, which does not hand out files",
            )
            .hinted("`katcall version` shows both versions; upgrade the machines first"));
        }
        Err(error) if error.is_not_found() && !error.to_string().contains("no generation ") => {
            let scope = Some(namespace.as_str());
            return Err(get::missing::<WorkloadItem>(session, error, scope, name).await);
        }
        Err(error) => return Err(error.into()),
    };
    Ok(StoredFiles {
        files: files_in(&source.archive)?,
        version: source.version,
    })
}

/// The files in the cluster's answer, which is read as strictly as an archive of a user.
fn files_in(archive: &[u8]) -> Result<Vec<SourceFile>, CliError> {
    read_archive(archive).map_err(|mistakes| {
        let first = mistakes.first().map(ToString::to_string);
        CliError::failed(format!(
            "the cluster's answer is not the archive of a workload: {}",
            plain(&first.unwrap_or_default())
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, EntryType, Header};

    use super::*;
    use crate::commands::changing::output_folder;

    /// An archive with one valid file and an entry of a hostile server.
    fn archive(name: &[u8], kind: EntryType, content: &[u8], link: &[u8]) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let entries = [
            (
                &b"workload.kat"[..],
                EntryType::Regular,
                &b"kind: Workload\n"[..],
                &b""[..],
            ),
            (name, kind, content, link),
        ];
        for (name, kind, content, link) in entries {
            let mut header = Header::new_ustar();
            // The library itself refuses such names.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name);
            header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link);
            header.set_entry_type(kind);
            header.set_size(u64::try_from(content.len()).unwrap());
            header.set_mode(0o6777);
            header.set_cksum();
            builder.append(&header, content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn a_hostile_answer_writes_nothing_outside_the_folder() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("a/web");
        let regular = |name: &'static [u8]| archive(name, EntryType::Regular, b"evil\n", b"");
        let mut huge = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..64 {
            huge.write_all(&[0; 1 << 20]).unwrap();
        }
        let answers = [
            regular(b"../x.kat"),
            regular(b"a/../../../x.kat"),
            regular(b"/tmp/x.kat"),
            regular(b"sub/x.kat"),
            regular(b"conf/not-mounted"),
            regular(b"-rf.kat"),
            regular(b"x\x1b[2J.kat"),
            regular(b"x\\y.kat"),
            regular(b"workload.kat"),
            regular(b"\xff.kat"),
            archive(b"x.kat", EntryType::Symlink, b"", b"/etc/passwd"),
            archive(b"x.kat", EntryType::Link, b"", b"workload.kat"),
            archive(b"x.kat", EntryType::Fifo, b"", b""),
            archive(b"x.kat", EntryType::Char, b"", b""),
            huge.finish().unwrap(),
            vec![0x1f, 0x8b, 0xff],
            b"{\"items\": []}".to_vec(),
            Vec::new(),
        ];
        for answer in answers {
            let written = files_in(&answer).and_then(|files| {
                let files = output_folder::files_of(&files)?;
                output_folder::write(&folder, &files, output_folder::ExistingFiles::Replace)
            });
            let error = written.unwrap_err().to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
        // Control: what such a server may send.
        let harmless = archive(b"other.kat", EntryType::Regular, b"a: 1\n", b"");
        let names: Vec<String> = files_in(&harmless)
            .unwrap()
            .into_iter()
            .map(|file| file.name)
            .collect();
        assert_eq!(names, ["other.kat", "workload.kat"]);
    }
}
