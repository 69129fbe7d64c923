//! Changes of the files of the workload's folder that volumes mount.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use similar::TextDiff;

use kat_bundle::{CarriedFile, unpack_carried};
use kat_types::{api::CarriedFileChange, store::snapshot::WorkloadEntry};

/// Lines of context around a change.
const CONTEXT: usize = 3;
/// After this time the differences of all files are only approximate: texts may be made to be hard
/// to compare.
const LONGEST: Duration = Duration::from_secs(1);

/// Changed files in the order of their paths; none if either version can't be read.
pub(crate) fn changes(
    old: Option<&WorkloadEntry>,
    new: Option<&WorkloadEntry>,
) -> Vec<CarriedFileChange> {
    let (old, new) = (carried(old), carried(new));
    let until = Instant::now() + LONGEST;
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed = paths.into_iter().filter_map(|path| {
        let (before, after) = (old.get(path), new.get(path));
        (before != after).then(|| CarriedFileChange {
            path: path.clone(),
            diff: difference(path, (before, after), until),
        })
    });
    changed.collect()
}

fn carried(entry: Option<&WorkloadEntry>) -> BTreeMap<String, CarriedFile> {
    let parsed = entry.and_then(|entry| entry.parsed.as_ref().ok());
    let packed = parsed.and_then(|parsed| parsed.carried.as_ref());
    let files = packed.and_then(|packed| unpack_carried(packed).ok());
    let files = files.into_iter().flatten();
    files.map(|file| (file.path.clone(), file)).collect()
}

fn difference(
    path: &str,
    (before, after): (Option<&CarriedFile>, Option<&CarriedFile>),
    until: Instant,
) -> String {
    let mode = |file: &CarriedFile| file.executable;
    let mut text = String::new();
    if let (Some(before), Some(after)) = (before, after)
        && mode(before) != mode(after)
    {
        let word = |program| if program { "a program" } else { "no program" };
        text.push_str(&format!(
            "was {}, is {}\n",
            word(mode(before)),
            word(mode(after))
        ));
    }
    let bytes = |file: Option<&CarriedFile>| file.map_or(0, |file| file.bytes.len());
    match (content(before), content(after)) {
        (Some(left), Some(right)) if left == right => {}
        (Some(left), Some(right)) => {
            let title = |file: Option<&CarriedFile>| match file {
                Some(_) => path,
                None => "/dev/null",
            };
            let mut config = TextDiff::configure();
            let diff = config.deadline(until).diff_lines(left, right);
            let mut diff = diff.unified_diff();
            diff.context_radius(CONTEXT)
                .header(title(before), title(after));
            text.push_str(&diff.to_string());
        }
        _ => text.push_str(&format!(
            "{path} is not text: {} bytes, then {}\n",
            bytes(before),
            bytes(after)
        )),
    }
    text
}

/// The text of a file, empty if there is no file; `None` if it is not text.
fn content(file: Option<&CarriedFile>) -> Option<&str> {
    let Some(file) = file else { return Some("") };
    let text = std::str::from_utf8(&file.bytes).ok()?;
    (!text.contains('\0')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8], executable: bool) -> CarriedFile {
        CarriedFile {
            path: "conf/a".to_owned(),
            executable,
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn texts_differ_by_lines_and_others_by_their_size() {
        let until = Instant::now() + LONGEST;
        let (old, new) = (file(b"a\nb\n", false), file(b"a\nc\n", true));
        let text = difference("conf/a", (Some(&old), Some(&new)), until);
        assert_eq!(
            text,
            "was no program, is a program\n--- conf/a\n+++ conf/a\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
        );
        let made = difference("conf/a", (None, Some(&new)), until);
        assert!(made.starts_with("--- /dev/null\n+++ conf/a\n"), "{made}");
        let gone = difference("conf/a", (Some(&old), None), until);
        assert!(gone.contains("+++ /dev/null\n"), "{gone}");
        let binary = difference("conf/a", (Some(&old), Some(&file(b"\0\xff", false))), until);
        assert_eq!(binary, "conf/a is not text: 4 bytes, then 2\n");
        let mode = difference("conf/a", (Some(&old), Some(&file(b"a\nb\n", true))), until);
        assert_eq!(mode, "was no program, is a program\n");
    }
}
