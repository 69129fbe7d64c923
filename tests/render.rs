//! Golden files of `render`: each folder of `tests/render` holds an `assignment.json` and the
//! expected files in `expected`. `UPDATE_GOLDENS=1` rewrites them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test"
)]

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use kat_network::nftables::firewall;
use kat_render::{EtcdUnit, NameSearch, RenderSettings, Renderer};
use kat_types::assignment::Assignment;

#[path = "render/generator.rs"]
mod generator;

fn cases_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("render")
}

/// All assignments by the name of their folder.
fn cases() -> BTreeMap<String, Assignment> {
    let mut cases = BTreeMap::new();
    for entry in std::fs::read_dir(cases_folder()).unwrap() {
        let folder = entry.unwrap().path();
        let assignment = folder.join("assignment.json");
        if assignment.is_file() {
            let text = std::fs::read_to_string(assignment).unwrap();
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            cases.insert(name, serde_json::from_str(&text).unwrap());
        }
    }
    assert!(cases.len() > 10, "the cases are gone");
    cases
}

/// The rendered files of an assignment, by name.
fn rendered(assignment: &Assignment) -> BTreeMap<String, String> {
    let renderer = Renderer::new(None).unwrap();
    let settings = RenderSettings::default();
    let files = renderer.instance(assignment, &settings).unwrap();
    let images = renderer
        .images(assignment, &settings, assignment.logins.is_some())
        .unwrap();
    files
        .into_iter()
        .chain(images)
        .map(|file| (file.name, file.text))
        .collect()
}

fn read_folder(folder: &Path) -> BTreeMap<String, String> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => panic!("{}: {error}", folder.display()),
    };
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// The files that a machine gets at init, and the files of a namespace and a user.
fn rendered_host() -> BTreeMap<String, String> {
    let renderer = Renderer::new(None).unwrap();
    let settings = RenderSettings::default();
    let address = Ipv4Addr::new(10, 100, 0, 1);
    let etcd = EtcdUnit::new("n1", address, 2379, 2380, "/var/lib/kat/pki");
    let resolv = renderer.resolv_conf(
        "default",
        "kat.cluster.local",
        address,
        NameSearch::Cluster,
        &settings,
    );
    let delegation = renderer.user_delegation(&cases()["minimal"]).unwrap();
    let node = serde_json::json!({"schema": 1, "node": "n1", "clusterCidr": "10.100.0.0/16", "serviceCidr": "10.200.0.0/16",
        "subnet": "10.100.0.0/23", "address": address, "clusterDomain": "kat.cluster.local", "wireguardPort": 51820,
        "mtu": 1420, "holdSeconds": 60});
    let others = ["192.0.2.2", "192.0.2.3", "2001:db8::2"];
    let others = others.iter().map(|text| text.parse().unwrap()).collect();
    let others = firewall::FirewallInput::new(others, None);
    let node = serde_json::from_value(node).unwrap();
    let rules = firewall::ruleset(firewall::TEMPLATE, &node, &others).unwrap();
    let mut files = renderer.host_files(&settings).unwrap();
    files.extend([renderer.etcd(&etcd).unwrap(), resolv.unwrap()]);
    files
        .into_iter()
        .map(|file| (file.path.display().to_string(), file.text))
        .map(|(path, text)| (path.trim_start_matches('/').replace('/', "!"), text))
        .chain([
            ("user@20000.service.d!50-kat.conf".to_owned(), delegation),
            ("kat.nft".to_owned(), rules),
        ])
        .collect()
}

#[test]
fn assignments_become_their_goldens() {
    let update = std::env::var_os("UPDATE_GOLDENS").is_some();
    let mut differing = Vec::new();
    let cases = cases()
        .into_iter()
        .map(|(name, assignment)| (name, rendered(&assignment)));
    for (name, files) in cases.chain([("host".to_owned(), rendered_host())]) {
        let folder = cases_folder().join(&name).join("expected");
        if update {
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            for (file, text) in &files {
                std::fs::write(folder.join(file), text).unwrap();
            }
        } else if read_folder(&folder) != files {
            differing.push(name);
        }
    }
    assert!(
        differing.is_empty(),
        "{differing:?} differ: run with UPDATE_GOLDENS=1 and read the difference in git"
    );
}

#[test]
fn rendering_twice_gives_the_same() {
    for assignment in cases().values() {
        assert_eq!(rendered(assignment), rendered(assignment));
    }
}

/// Needs root and a root file system with Podman 5.4 (`tests/render/check-with-podman` runs it).
#[test]
#[ignore = "needs root and KAT_RENDER_ROOT, a root file system with Podman: tests/render/check-with-podman"]
fn podmans_generator_reads_what_was_meant() {
    generator::check_goldens(&cases());
}

/// The same with random arguments.
#[test]
#[ignore = "needs root and KAT_RENDER_ROOT, a root file system with Podman: tests/render/check-with-podman"]
fn podmans_generator_keeps_any_argument() {
    generator::check_random_arguments(&cases()["minimal"]);
}
