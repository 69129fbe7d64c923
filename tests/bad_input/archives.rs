//! Malicious archives and broken archives.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use tar::{EntryType, Header};

use crate::over_api;
use kat_bundle::{
    ArchiveLimits, Class, Diagnostic, SourceFile, pack, read_archive, read_archive_within,
};

/// One raw entry. Nothing in it is checked.
fn entry(name: &[u8], kind: EntryType, link: &[u8], contents: &[u8]) -> Vec<u8> {
    sized(name, kind, link, contents, contents.len() as u64)
}

fn sized(name: &[u8], kind: EntryType, link: &[u8], contents: &[u8], size: u64) -> Vec<u8> {
    let mut header = Header::new_ustar();
    let bytes = header.as_mut_bytes();
    bytes[..name.len()].copy_from_slice(name);
    bytes[157..157 + link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_mode(0o6777);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(size);
    header.set_cksum();
    let mut raw = header.as_bytes().to_vec();
    raw.extend_from_slice(contents);
    raw.resize(raw.len().div_ceil(512) * 512, 0);
    raw
}

fn plain(name: &str, contents: &[u8]) -> Vec<u8> {
    entry(name.as_bytes(), EntryType::Regular, b"", contents)
}

/// A record of an extended header, such as `30 path=../etc/passwd`.
fn pax(key: &str, value: &str) -> Vec<u8> {
    let mut length = key.len() + value.len() + 3;
    while format!("{length} {key}={value}\n").len() != length {
        length += 1;
    }
    let record = format!("{length} {key}={value}\n");
    entry(b"pax", EntryType::XHeader, b"", record.as_bytes())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn tar_of(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut tar = entries.concat();
    tar.resize(tar.len() + 1024, 0);
    tar
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    gzip(&tar_of(entries))
}

const TEXT: &[u8] = b"kind: Workload\n";

/// The errors of an archive that also has a valid file.
#[track_caller]
fn refused(bad: &[Vec<u8>]) -> Vec<Diagnostic> {
    let mut entries = vec![plain("workload.kat", TEXT)];
    entries.extend_from_slice(bad);
    let bytes = archive(&entries);
    let found = read_archive(&bytes).expect_err("the archive is accepted");
    over_api::refused(bytes, &found);
    found
}

#[track_caller]
fn only(class: Class, file: &str, words: &[&str], found: &[Diagnostic]) {
    let [one] = found else {
        panic!("{found:?}");
    };
    assert_eq!((one.class, one.file.as_str()), (class, file), "{one}");
    for word in words {
        assert!(one.to_string().contains(word), "`{word}` is not in: {one}");
    }
}

#[track_caller]
fn whole(class: Class, words: &[&str], bytes: &[u8]) {
    let found = read_archive(bytes).expect_err("the archive is accepted");
    only(class, "archive", words, &found);
    over_api::refused(bytes.to_vec(), &found);
}

#[test]
fn paths_that_leave_the_archive() {
    use Class::Archive;
    only(
        Archive,
        "../x.kat",
        &["`..`"],
        &refused(&[plain("../x.kat", TEXT)]),
    );
    only(
        Archive,
        "a/../../x.kat",
        &["`..`"],
        &refused(&[plain("a/../../x.kat", TEXT)]),
    );
    only(
        Archive,
        "/etc/x.kat",
        &["absolute"],
        &refused(&[plain("/etc/x.kat", TEXT)]),
    );
    only(
        Archive,
        "..\\x.kat",
        &["backslash"],
        &refused(&[plain("..\\x.kat", TEXT)]),
    );
    // A later header changes the name that the first one declared.
    let long = entry(
        b"././@LongLink",
        EntryType::GNULongName,
        b"",
        b"../../x.kat\0",
    );
    only(
        Archive,
        "../../x.kat",
        &["`..`"],
        &refused(&[long, plain("good.kat", TEXT)]),
    );
    let path = pax("path", "../y.kat");
    only(
        Archive,
        "../y.kat",
        &["`..`"],
        &refused(&[path, plain("good.kat", TEXT)]),
    );
    let folder = entry(b"../out/", EntryType::Directory, b"", b"");
    only(Archive, "../out/", &["`..`"], &refused(&[folder]));
}

#[test]
fn what_is_not_a_plain_file() {
    use Class::Archive;
    let link = |kind| refused(&[entry(b"x.kat", kind, b"/etc/shadow", b"")]);
    only(Archive, "x.kat", &["a link"], &link(EntryType::Symlink));
    only(Archive, "x.kat", &["a link"], &link(EntryType::Link));
    only(Archive, "x.kat", &["a device"], &link(EntryType::Char));
    only(Archive, "x.kat", &["a device"], &link(EntryType::Block));
    only(Archive, "x.kat", &["a pipe"], &link(EntryType::Fifo));
    only(Archive, "x.kat", &["special"], &link(EntryType::new(b'Z')));
    // The archive has a link to a folder, and a file below the link.
    let through = [
        entry(b"d", EntryType::Symlink, b"/etc", b""),
        plain("d/x.kat", TEXT),
    ];
    let found = refused(&through);
    assert!(
        found.iter().any(|found| found.message.contains("a link")),
        "{found:?}"
    );
}

#[test]
fn names_and_texts_that_are_not_text() {
    use Class::{Archive, Encoding};
    let found = refused(&[entry(b"x\xff.kat", EntryType::Regular, b"", TEXT)]);
    only(Encoding, "x\u{fffd}.kat", &["not UTF-8"], &found);
    let found = refused(&[plain("x\u{1b}[2J.kat", TEXT)]);
    only(Archive, "x\\u{1b}[2J.kat", &["control character"], &found);
    let found = refused(&[plain("job.kat", b"kind: x\nname: \xc3\x28\n")]);
    only(Encoding, "job.kat", &["0xc3", "UTF-8"], &found);
    assert_eq!((found[0].line, found[0].column), (2, 7));
    let found = refused(&[plain("job.kat", b"\xff\xfek\0i\0n\0d\0")]);
    only(Encoding, "job.kat", &["UTF-16"], &found);
    only(
        Archive,
        "a b.kat",
        &["letters"],
        &refused(&[plain("a b.kat", TEXT)]),
    );
}

#[test]
fn the_same_file_twice() {
    let found = refused(&[plain("./workload.kat", TEXT)]);
    only(Class::Duplicate, "workload.kat", &["twice"], &found);
}

#[test]
fn bombs() {
    use Class::Oversize;
    let zeros = vec![0; 8 * 1024 * 1024];
    let bomb = archive(&[plain("workload.kat", &zeros)]);
    assert!(bomb.len() < 16 * 1024);
    whole(Oversize, &["expands to more than"], &bomb);
    whole(Oversize, &["at most 1048576"], &vec![0x1f; 1024 * 1024 + 1]);
    let many: Vec<_> = (0..513)
        .map(|index| plain(&format!("f{index}.kat"), b""))
        .collect();
    let found = read_archive(&archive(&many)).unwrap_err();
    assert!(
        found
            .iter()
            .any(|found| found.class == Oversize && found.message.contains("512 entries"))
    );
    let many: Vec<_> = (0..257)
        .map(|index| plain(&format!("f{index}.kat"), b""))
        .collect();
    whole(
        Oversize,
        &["257 *.kat files", "at most 256"],
        &archive(&many),
    );
    let hidden: Vec<_> = (0..513)
        .map(|index| plain(&format!(".f{index}"), b""))
        .collect();
    assert!(
        read_archive(&archive(&hidden)).is_err(),
        "ignored files are not counted"
    );
    let large = vec![b'#'; 256 * 1024 + 1];
    only(
        Oversize,
        "job.kat",
        &["262145", "at most 262144"],
        &refused(&[plain("job.kat", &large)]),
    );
    let long = format!("{}.kat", "x/".repeat(126));
    let header = entry(
        b"././@LongLink",
        EntryType::GNULongName,
        b"",
        long.as_bytes(),
    );
    let found = refused(&[header, plain("x.kat", TEXT)]);
    assert_eq!((found.len(), found[0].class), (1, Oversize), "{found:?}");
    // A sparse file declares a large size and has no contents.
    let found = refused(&[sized(b"x.kat", EntryType::GNUSparse, b"", b"", 1 << 40)]);
    assert!(!found.is_empty());
}

#[test]
fn limits_can_be_lower() {
    let limits = ArchiveLimits {
        entries: 1,
        ..ArchiveLimits::default()
    };
    let two = archive(&[plain("workload.kat", TEXT), plain("job.kat", TEXT)]);
    assert!(read_archive(&two).is_ok());
    let found = read_archive_within(&two, &limits).unwrap_err();
    only(Class::Oversize, "archive", &["1 entries"], &found);
}

#[test]
fn other_formats() {
    use Class::Archive;
    let tar = tar_of(&[plain("workload.kat", TEXT)]);
    whole(Archive, &["nothing", ".tar.gz"], b"");
    whole(Archive, &["zip"], b"PK\x03\x04rest");
    whole(Archive, &["zstd"], b"\x28\xb5\x2f\xfdrest");
    whole(Archive, &["xz"], b"\xfd7zXZ\0rest");
    whole(Archive, &["bzip2"], b"BZh9rest");
    whole(Archive, &["without gzip", "--gzip"], &tar);
    whole(Archive, &["other bytes"], b"kind: Workload\n");
}

#[test]
fn damaged_archives() {
    use Class::Archive;
    let good = archive(&[plain("workload.kat", TEXT)]);
    whole(Archive, &["damaged"], &good[..good.len() / 2]);
    let mut wrong = good.clone();
    let last = wrong.len() - 6;
    wrong[last] ^= 0xff;
    whole(Archive, &["damaged"], &wrong);
    whole(
        Archive,
        &["damaged"],
        &gzip(b"not a tar archive, but long enough".repeat(40).as_slice()),
    );
    let mut more = good.clone();
    more.extend_from_slice(&good);
    whole(Archive, &["after the end"], &more);
    // The header declares more bytes than follow.
    let short = sized(b"x.kat", EntryType::Regular, b"", b"a: 1\n", 100_000);
    assert!(read_archive(&gzip(&short)).is_err());
    let huge = sized(b"x.kat", EntryType::Regular, b"", b"a: 1\n", 1 << 40);
    assert!(read_archive(&archive(&[huge])).is_err());
    let size = [pax("size", "100000"), plain("x.kat", TEXT)];
    assert!(!refused(&size).is_empty());
}

#[test]
fn files_that_have_no_place() {
    only(
        Class::Archive,
        "conf/x.kat",
        &["lies in a folder"],
        &refused(&[plain("conf/x.kat", TEXT)]),
    );
    only(
        Class::Archive,
        "conf/nginx.conf",
        &["no volume mounts it"],
        &refused(&[plain("conf/nginx.conf", b"x")]),
    );
    whole(Class::Missing, &["no *.kat file"], &archive(&[]));
    whole(
        Class::Missing,
        &["no *.kat file"],
        &archive(&[plain(".hidden", b"x")]),
    );
}

#[test]
fn all_mistakes_at_once() {
    let found = refused(&[
        plain("../x.kat", TEXT),
        entry(b"y.kat", EntryType::Symlink, b"/etc/passwd", b""),
        plain("z.kat", b"\xff"),
    ]);
    assert_eq!(found.len(), 3, "{found:?}");
}

/// Harmless archives are accepted: modes and owners do not matter, and neither do hidden files and
/// backups.
#[test]
fn what_is_accepted() {
    let read = |entries: &[Vec<u8>]| {
        let files = read_archive(&archive(entries)).unwrap_or_else(|found| panic!("{found:?}"));
        files.into_iter().map(|file| file.name).collect::<Vec<_>>()
    };
    let folder = |name: &[u8]| entry(name, EntryType::Directory, b"", b"");
    let both = ["job.kat".to_owned(), "workload.kat".to_owned()];
    assert_eq!(
        read(&[plain("workload.kat", TEXT), plain("job.kat", TEXT)]),
        both
    );
    assert_eq!(
        read(&[
            folder(b"./"),
            plain("./workload.kat", TEXT),
            plain("./job.kat", TEXT)
        ]),
        both
    );
    assert_eq!(
        read(&[
            folder(b"web/"),
            plain("web/workload.kat", TEXT),
            plain("web/job.kat", TEXT)
        ]),
        both
    );
    let global = entry(
        b"pax_global_header",
        EntryType::XGlobalHeader,
        b"",
        b"19 comment=0123abc\n",
    );
    let noise = [
        global,
        plain(".git/config", b"\xff"),
        plain("workload.kat~", b"old"),
        plain("._workload.kat", b"\0\x05\x16\x07"),
        plain(".workload.kat.swp", b"x"),
        plain("workload.kat", TEXT),
    ];
    assert_eq!(read(&noise), ["workload.kat"]);
    let files = [SourceFile {
        name: "workload.kat".to_owned(),
        text: "a: 1\n".to_owned(),
    }];
    assert_eq!(read_archive(&pack(&files).unwrap()).unwrap(), files);
}
