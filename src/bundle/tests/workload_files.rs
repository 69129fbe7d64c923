//! Files of the workload's folder that its volumes mount.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use super::*;

/// A workload with a volume for each of these folders.
fn mounting(folders: &[&str]) -> SourceFile {
    let mut value = workload();
    let names: Vec<String> = (0..folders.len())
        .map(|index| format!("v{index}"))
        .collect();
    let volumes = names.iter().zip(folders);
    let volumes = volumes.map(|(name, folder)| json!({"name": name, "files": folder}));
    value["spec"]["volumes"] = volumes.collect();
    let mounts = names
        .iter()
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    value["spec"]["container"]["volumeMounts"] = mounts.collect();
    file("workload.kat", &value)
}

fn put(top: &Path, path: &str, bytes: &[u8]) {
    let path = top.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A workload's folder that mounts `conf/`, with these files in it.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    put(
        top.path(),
        "workload.kat",
        mounting(&["./conf//"]).text.as_bytes(),
    );
    for (path, bytes) in files {
        put(top.path(), path, bytes);
    }
    top
}

fn read(top: &tempfile::TempDir) -> Bundle {
    let files = read_folder(top.path()).unwrap_or_else(|found| panic!("{}", lines(&found)));
    parsed(&files)
}

fn mistakes(top: &tempfile::TempDir) -> String {
    let found = match read_folder(top.path()) {
        Ok(files) => parse(&files, DecodeMode::Strict).unwrap_err(),
        Err(found) => found,
    };
    lines(&found)
}

#[test]
fn a_folder_brings_what_its_volumes_mount_and_nothing_else() {
    let top = folder(&[
        ("conf/nginx.conf", b"events {}\n"),
        ("conf/inner/logo.png", b"\x89PNG\0\xff"),
        ("conf/.htaccess", b"deny"),
        ("conf/nginx.conf~", b"old"),
        ("conf/.git/HEAD", b"ref"),
        ("notes/todo", b"not meant"),
    ]);
    let script = top.path().join("conf/start.sh");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o750)).unwrap();
    let bundle = read(&top);
    let carried = bundle.carried.iter();
    let carried: Vec<_> = carried
        .map(|file| (file.path.as_str(), file.executable, file.bytes.as_slice()))
        .collect();
    let expected: [(&str, bool, &[u8]); 4] = [
        ("conf/.htaccess", false, b"deny"),
        ("conf/inner/logo.png", false, b"\x89PNG\0\xff"),
        ("conf/nginx.conf", false, b"events {}\n"),
        ("conf/start.sh", true, b"#!/bin/sh\n"),
    ];
    assert_eq!(carried, expected);
    assert!(not_yet(&bundle).is_empty());
    let names: Vec<_> = bundle.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, [CARRIED, "workload.kat"]);

    // The archive, with and without an enclosing folder, and the stored files give the same bundle.
    let packed = pack(&bundle.files).unwrap();
    assert_eq!(read_archive(&packed).unwrap(), bundle.files);
    assert_eq!(parse(&bundle.files, DecodeMode::Stored).unwrap(), bundle);
    let text = &bundle.files[0].text;
    assert_eq!(unpack_carried(text).unwrap(), bundle.carried);
    assert_eq!(
        &pack_carried(&bundle.carried).unwrap(),
        text,
        "the same bytes again"
    );
}

#[test]
fn changed_workload_files_change_the_template_hash() {
    let of = |files: &[(&str, &[u8])]| {
        let bundle = read(&folder(files));
        (template_hash(&bundle), spec_hash(&bundle))
    };
    let first = of(&[("conf/a", b"1")]);
    assert_eq!(
        first,
        of(&[("conf/a", b"1"), ("conf/a.swp", b"2"), ("other/a", b"3")])
    );
    for other in [
        of(&[("conf/a", b"2")]),
        of(&[("conf/b", b"1")]),
        of(&[("conf/a", b"1"), ("conf/b", b"")]),
    ] {
        assert_ne!(first.0, other.0);
        assert_ne!(first.1, other.1);
    }
    let top = folder(&[("conf/a", b"1")]);
    let path = top.path().join("conf/a");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_ne!(first.0, template_hash(&read(&top)), "a program is another");
}

#[test]
fn folders_that_are_not_right_are_named() {
    let said = |top: &tempfile::TempDir, words: &[&str]| {
        let found = mistakes(top);
        for word in words {
            assert!(found.contains(word), "`{word}` is not in: {found}");
        }
    };
    said(
        &folder(&[]),
        &["spec.volumes[0].files", "no file lies in `conf/`"],
    );
    said(
        &folder(&[("conf", b"a file")]),
        &["conf", "is not a folder"],
    );
    let top = folder(&[("conf/a", b"1")]);
    symlink("/etc/passwd", top.path().join("conf/link")).unwrap();
    said(&top, &["conf/link", "is a link or a special file"]);
    // A link as the mounted folder or above it is never followed, so the files behind it are not
    // sent.
    let elsewhere = tempfile::tempdir().unwrap();
    put(elsewhere.path(), "inner/id_ed25519", b"not meant");
    for link in ["way", "way/inner"] {
        let top = folder(&[]);
        let text = mounting(&["way/inner"]).text;
        put(top.path(), "workload.kat", text.as_bytes());
        let target = match link {
            "way" => elsewhere.path().to_owned(),
            _ => {
                fs::create_dir(top.path().join("way")).unwrap();
                elsewhere.path().join("inner")
            }
        };
        symlink(target, top.path().join(link)).unwrap();
        said(&top, &[link, "is a link, expected a plain folder"]);
    }
    let top = folder(&[
        ("conf/large", &vec![b'x'; MAX_CARRIED]),
        ("conf/more", b"1"),
    ]);
    said(&top, &["conf/more", "524288"]);
    let many: Vec<String> = (0..=MAX_CARRIED_FILES)
        .map(|index| format!("conf/{index:03}"))
        .collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|path| (path.as_str(), &b"1"[..])).collect();
    said(&folder(&many), &["conf/256", "more than 256 files"]);
    let top = folder(&[]);
    put(top.path(), "workload.kat", mounting(&["."]).text.as_bytes());
    said(&top, &["found `.`", "a folder within the workload's own"]);
    put(
        top.path(),
        "workload.kat",
        mounting(&["../secrets"]).text.as_bytes(),
    );
    said(&top, &["spec.volumes[0].files", "without `..`"]);
}

#[test]
fn a_file_below_is_mounted_by_its_sub_path() {
    let mut value: Value = serde_json::from_str(&mounting(&["conf"]).text).unwrap();
    let mounts = &mut value["spec"]["container"]["volumeMounts"];
    *mounts = json!([
        {"name": "v0", "mountPath": "/etc/a", "subPath": "inner/a"},
        {"name": "v0", "mountPath": "/etc/all"},
    ]);
    let top = folder(&[("conf/inner/a", b"1")]);
    put(top.path(), "workload.kat", file("", &value).text.as_bytes());
    assert_eq!(read(&top).carried.len(), 1);
    fs::rename(
        top.path().join("conf/inner/a"),
        top.path().join("conf/inner/b"),
    )
    .unwrap();
    let found = mistakes(&top);
    assert!(
        found.contains("`conf/inner/a` is not in the workload's folder"),
        "{found}"
    );
}

#[test]
fn the_largest_folder_fits_into_what_is_stored() {
    // The content is pseudo-random bytes, which do not compress.
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    })
    .take(MAX_CARRIED)
    .collect();
    let bundle = read(&folder(&[("conf/noise", &noise)]));
    let stored: usize = bundle.files.iter().map(|file| file.text.len()).sum();
    assert!(stored <= 700 * 1024, "{stored} bytes");
    let packed = pack(&bundle.files).unwrap();
    assert_eq!(read_archive(&packed).unwrap(), bundle.files);
}

#[test]
fn damaged_packs_are_refused() {
    let tar = |files: &[(&str, &[u8])]| {
        let files: Vec<CarriedFile> = files
            .iter()
            .map(|(path, bytes)| CarriedFile {
                path: (*path).to_owned(),
                executable: false,
                bytes: bytes.to_vec(),
            })
            .collect();
        pack_carried(&files).unwrap()
    };
    assert!(
        unpack_carried(&tar(&[
            ("conf/a", b"1"),
            ("conf/ab", b"2"),
            ("conf/b/c", b"3")
        ]))
        .is_ok()
    );
    assert!(unpack_carried("no base64!").unwrap_err().contains("base64"));
    assert!(unpack_carried("AAAA").is_err());
    for twice in [
        [("conf/a", &b"1"[..]), ("conf/a", b"2")],
        [("conf/a", b"1"), ("conf/a/b", b"2")],
        [("conf/a/b", b"1"), ("conf", b"2")],
        [("conf/a", &vec![0; MAX_CARRIED][..]), ("conf/b", b"2")],
    ] {
        assert!(unpack_carried(&tar(&twice)).is_err());
    }
    let apart = tar(&[("conf/a", b"1"), ("conf/a.b", b"2"), ("conf/a/b", b"3")]);
    assert!(unpack_carried(&apart).is_err(), "the clash is no neighbour");
}
