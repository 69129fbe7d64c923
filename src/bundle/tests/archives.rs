//! Packing a folder, and reading the archive. Malicious archives are in `tests/bad_input`.

use std::{fs, path::Path};

use super::*;

fn sources() -> Vec<SourceFile> {
    vec![
        file("workload.kat", &workload()),
        file(
            "VirtualLoadBalancer.kat",
            &least(DocumentKind::VirtualLoadBalancer),
        ),
    ]
}

#[test]
fn what_is_packed_is_read() {
    let mut files = sources();
    let packed = pack(&files).unwrap();
    files.sort_by(|left, right| left.name.cmp(&right.name));
    assert_eq!(read_archive(&packed).unwrap(), files);
    assert!(parse(&files, DecodeMode::Strict).is_ok());
}

#[test]
fn the_same_files_are_the_same_bytes() {
    let mut files = sources();
    let packed = pack(&files).unwrap();
    files.reverse();
    assert_eq!(pack(&files).unwrap(), packed);
    assert_eq!(packed[4..8], [0; 4], "the gzip header has a time");
}

#[test]
fn a_folder_is_its_kat_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    for source in sources() {
        write(&source.name, &source.text);
    }
    write("README.md", "not for KAT");
    write(".hidden.kat", "no");
    write("workload.kat~", "old");
    fs::create_dir(folder.path().join("conf")).unwrap();
    let files = read_folder(folder.path()).unwrap();
    let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["VirtualLoadBalancer.kat", "workload.kat"]);
    let one = read_folder(&folder.path().join("workload.kat")).unwrap();
    assert_eq!(one.len(), 1);
}

#[test]
fn a_folder_that_is_not_right_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let of = |path: &Path| read_folder(path).unwrap_err();
    assert_eq!(of(folder.path())[0].class, Class::Missing);
    // A file whose name ends in another way is named, and not read.
    fs::write(folder.path().join("workload.yaml"), "name: x\n").unwrap();
    fs::write(folder.path().join("zzz.yml"), "").unwrap();
    let hint = of(folder.path())[0].hint.clone().unwrap();
    assert!(hint.contains("rename workload.yaml"), "{hint}");
    assert_eq!(of(&folder.path().join("none"))[0].class, Class::Archive);
    fs::write(folder.path().join("a.kat"), b"name: \xff\n").unwrap();
    fs::write(folder.path().join("b.kat"), "x".repeat(MAX_FILE + 1)).unwrap();
    fs::create_dir(folder.path().join("c.kat")).unwrap();
    let found = of(folder.path());
    let classes: Vec<_> = found
        .iter()
        .map(|found| (found.file.as_str(), found.class))
        .collect();
    assert_eq!(
        classes,
        [
            ("a.kat", Class::Encoding),
            ("b.kat", Class::Oversize),
            ("c.kat", Class::Archive)
        ]
    );
    assert_eq!((found[0].line, found[0].column), (1, 7));
}

/// The example that the documentation uses.
#[test]
fn the_example_has_no_mistakes_and_takes_effect() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/examples/web");
    let bundle = parsed(&read_folder(&folder).unwrap());
    assert_eq!(lines(&not_yet(&bundle)), "");
    let workload = bundle.workload.unwrap();
    assert_eq!(
        workload.spec.source.image.as_deref(),
        Some("registry.lab:5000/web:1")
    );
    assert_eq!(workload.spec.replicas, Some(3));
    let port = &bundle.load_balancer.unwrap().spec.ports[0];
    assert_eq!(
        (port.name.as_deref(), port.container_port),
        (Some("web"), 8080)
    );
}

#[test]
fn every_example_has_no_mistakes_and_takes_effect() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/examples");
    let mut tried = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let folder = entry.unwrap().path();
        let bundle = parsed(&read_folder(&folder).unwrap());
        assert_eq!(lines(&not_yet(&bundle)), "", "{}", folder.display());
        assert!(bundle.workload.is_some(), "{}", folder.display());
        // A Job has no ports, and every other example has some.
        assert_ne!(
            bundle.job.is_some(),
            bundle.load_balancer.is_some(),
            "{}",
            folder.display()
        );
        tried += 1;
    }
    assert!(tried >= 9, "only {tried} examples");
}
