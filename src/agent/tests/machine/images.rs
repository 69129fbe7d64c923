//! Removal of unused images.

use super::*;
use crate::{
    disk::pressure::{DiskWatch, FreeSpace},
    images::{collector::Collector, unused::ImageCare},
};
use kat_daemon::watchdog::LoopPulses;
use kat_types::{
    images::{KeptImages, KeptUserImages},
    resource::AgentConfig,
};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

impl Bench {
    /// Puts images with these ids and names, of 1 MiB each, into the user's storage.
    fn store(&self, assignment: &Assignment, images: &[(&str, &str)]) {
        let storage = self
            .accounts
            .home(&assignment.user)
            .join(".local/share/containers/storage");
        let entries = images
            .iter()
            .map(|(id, name)| serde_json::json!({"id": id, "digest": "sha256:1", "names": [name]}));
        let entries: Vec<_> = entries.collect();
        let layers = images
            .iter()
            .map(|(id, _)| serde_json::json!({"id": id, "diff-size": 1 << 20}));
        let layers: Vec<_> = layers.collect();
        for (folder, file, text) in [
            (
                "overlay-images",
                "images.json",
                serde_json::Value::from(entries),
            ),
            (
                "overlay-layers",
                "layers.json",
                serde_json::Value::from(layers),
            ),
        ] {
            std::fs::create_dir_all(storage.join(folder)).unwrap();
            std::fs::write(storage.join(folder).join(file), text.to_string()).unwrap();
        }
    }

    /// A list that also names the images that the leader wants kept, by user index.
    fn list_keeping(&self, confirmed: bool, assignments: &[Assignment], kept: &[(u32, &[&str])]) {
        self.list(confirmed, assignments);
        let users = kept.iter().map(|(index, images)| {
            let images = images.iter().map(|image| (*image).to_owned()).collect();
            (
                *index,
                KeptUserImages {
                    images,
                    unknown: false,
                },
            )
        });
        let images = KeptImages {
            schema: 1,
            users: users.collect(),
        };
        self.lists.send_modify(|listed| {
            let mut desired = DesiredState::clone(&listed.desired);
            desired.images = Some(images);
            listed.desired = Arc::new(desired);
        });
    }

    /// Starts the image collector. The returned flag makes the disk short of space.
    fn collect(&self) -> Arc<AtomicBool> {
        let short = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&short);
        let look = move |_: &Path| {
            let free = if told.load(Ordering::Relaxed) { 1 } else { 50 };
            Ok(FreeSpace {
                device: 1,
                bytes: 100,
                free_bytes: free,
                inodes: 0,
                free_inodes: 0,
            })
        };
        let disks = DiskWatch::new(
            &Root::new("/"),
            "/volumes",
            &AgentConfig::default(),
            Arc::new(look),
        );
        let disks = Arc::new(disks);
        tokio::spawn(Arc::clone(&disks).run(
            self.tools.volumes.disks().clone(),
            self.statuses.clone(),
            LoopPulses::default(),
            self.cancel.clone(),
        ));
        let collector = Collector {
            lists: self.lists.subscribe(),
            tools: Arc::clone(&self.tools),
            disks,
            statuses: self.statuses.clone(),
            pulses: LoopPulses::default(),
        };
        tokio::spawn(collector.run(self.cancel.clone()));
        short
    }

    fn removals(&self, assignment: &Assignment) -> usize {
        self.calls(assignment, "run_transient images-kat-")
    }

    fn has(&self, assignment: &Assignment) -> bool {
        self.accounts.find(assignment.user.uid).is_some()
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_image_goes_after_its_age_and_what_may_run_next_stays() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let old = ("old", "registry.lab:5000/web:0");
    let others = [
        ("used", "registry.lab:5000/web:1"),
        ("good", "registry.lab:5000/web@sha256:9"),
    ];
    bench.store(&web, &[old, others[0], others[1]]);
    let kept: &[(u32, &[&str])] = &[(
        0,
        &["registry.lab:5000/web:1", "registry.lab:5000/web@sha256:9"],
    )];
    bench.list_keeping(true, std::slice::from_ref(&web), kept);
    let _short = bench.collect();
    bench.later(HOUR * 23).await;
    assert_eq!(bench.removals(&web), 0);
    bench.later(HOUR + Duration::from_secs(150)).await;
    assert!(bench.removals(&web) >= 1);
    bench.store(&web, &others);
    let before = bench.removals(&web);
    bench.later(DAY * 2).await;
    assert_eq!(bench.removals(&web), before, "the others stay");
    let told = bench.statuses.images_removed().unwrap();
    assert!(
        told.names
            .iter()
            .all(|name| name == "registry.lab:5000/web:0"),
        "{told:?}"
    );
    let file = std::fs::read_to_string(bench.root.path().join("var/lib/kat/images.json")).unwrap();
    assert!(file.contains(r#""id":"#) && !file.contains("old"), "{file}");
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_by_a_list_that_is_not_confirmed_or_says_nothing_of_images() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.store(&web, &[("old", "registry.lab:5000/web:0")]);
    let short = bench.collect();
    short.store(true, Ordering::Relaxed);
    // No image is removed by the list of a leader of an earlier version, by a list that does not
    // name the user's images, or by an unconfirmed list.
    bench.list(true, std::slice::from_ref(&web));
    bench.later(DAY * 2).await;
    bench.list_keeping(true, std::slice::from_ref(&web), &[]);
    bench.later(DAY * 2).await;
    bench.list_keeping(
        false,
        std::slice::from_ref(&web),
        &[(0, &["registry.lab:5000/web:1"])],
    );
    bench.later(DAY * 2).await;
    assert_eq!(bench.removals(&web), 0);
    bench.list_keeping(
        true,
        std::slice::from_ref(&web),
        &[(0, &["registry.lab:5000/web:1"])],
    );
    bench.later(Duration::from_secs(65)).await;
    assert!(
        bench.removals(&web) >= 1,
        "short of disk space it goes at once"
    );
}

#[tokio::test(start_paused = true)]
async fn what_podman_does_not_remove_is_not_tried_each_minute() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.store(&web, &[("old", "registry.lab:5000/web:0")]);
    bench.list_keeping(
        true,
        std::slice::from_ref(&web),
        &[(0, &["registry.lab:5000/web:1"])],
    );
    bench.soon().await;
    let refused = kat_systemd::SystemdError::NoSuchUnit("images-kat".to_owned());
    bench.manager(&web).fail_next("run_transient", refused);
    let short = bench.collect();
    short.store(true, Ordering::Relaxed);
    bench.later(Duration::from_secs(1800)).await;
    assert_eq!(bench.removals(&web), 1);
    assert_eq!(bench.statuses.images_removed(), None);
    bench.later(HOUR).await;
    assert!(bench.removals(&web) > 1);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_comes_back_finds_its_image() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let name = web.image.clone();
    bench.store(&web, &[("used", &name)]);
    let kept: &[(u32, &[&str])] = &[(0, &[&name])];
    bench.list_keeping(true, std::slice::from_ref(&web), kept);
    let _short = bench.collect();
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    let pull = format!("start {}", image_unit(&bench, &web));
    let pulls = bench.calls(&web, &pull);
    bench.list_keeping(true, &[], kept);
    bench.later(Duration::from_secs(90)).await;
    // No unit of the workload is left. Its account and home remain, and are reported.
    assert!(bench.has(&web));
    assert!(!bench.units(&web).exists());
    assert_eq!(bench.statuses.all().1, [0]);
    bench.later(DAY * 6).await;
    assert!(bench.has(&web));
    bench.list_keeping(true, std::slice::from_ref(&web), kept);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_eq!(bench.calls(&web, &pull), pulls, "nothing is pulled");
    // The time counts anew when the workload leaves again.
    bench.later(Duration::from_secs(90)).await;
    bench.list_keeping(true, &[], kept);
    bench.later(DAY * 6).await;
    assert!(bench.has(&web));
    bench.later(DAY + HOUR).await;
    assert!(!bench.has(&web));
    assert!(bench.statuses.all().1.is_empty());
    let told = bench.statuses.images_removed().unwrap();
    assert_eq!(
        (told.images, told.bytes, told.names),
        (1, 1 << 20, vec![name])
    );
}

#[tokio::test(start_paused = true)]
async fn the_images_of_a_workload_that_is_gone_go_with_it() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.store(&web, &[("used", &web.image)]);
    let kept: &[(u32, &[&str])] = &[(0, &[&web.image])];
    bench.list_keeping(true, std::slice::from_ref(&web), kept);
    let _short = bench.collect();
    bench.soon().await;
    bench.list_keeping(true, &[], kept);
    bench.later(Duration::from_secs(90)).await;
    assert!(bench.has(&web));
    // The workload was deleted, and the leader waits until its user is removed.
    bench.list_keeping(true, &[], &[]);
    bench.later(Duration::from_secs(5)).await;
    assert!(!bench.has(&web));
    assert_eq!(bench.statuses.images_removed(), None);
}

#[tokio::test(start_paused = true)]
async fn images_of_an_old_version_alone_do_not_stay_for_days() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.store(&web, &[("old", &web.image)]);
    let kept: &[(u32, &[&str])] = &[(0, &["registry.lab:5000/web:2"])];
    bench.list_keeping(true, std::slice::from_ref(&web), kept);
    let _short = bench.collect();
    bench.soon().await;
    bench.list_keeping(true, &[], kept);
    bench.later(HOUR * 23).await;
    assert!(bench.has(&web));
    bench.later(HOUR * 2).await;
    assert!(!bench.has(&web));
}

#[tokio::test(start_paused = true)]
async fn without_room_the_workload_that_has_been_away_for_longest_goes_first() {
    let bench = Bench::new();
    let (one, two) = (assignment(0, "one"), assignment(1, "two"));
    for each in [&one, &two] {
        bench.store(each, &[("used", &each.image)]);
    }
    let kept: &[(u32, &[&str])] = &[(0, &[&one.image]), (1, &[&two.image])];
    bench.list_keeping(true, &[one.clone(), two.clone()], kept);
    let short = bench.collect();
    bench.soon().await;
    bench.list_keeping(true, std::slice::from_ref(&one), kept);
    bench.later(HOUR).await;
    bench.list_keeping(true, &[], kept);
    bench.later(HOUR).await;
    assert!(bench.has(&one) && bench.has(&two));
    short.store(true, Ordering::Relaxed);
    // Removal takes a look at the disk, a round of the collector and a pass of the worker. The
    // other workload would follow in the next round.
    let gone = async {
        while bench.has(&two) {
            bench.soon().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), gone)
        .await
        .unwrap();
    assert!(bench.has(&one), "one after the other");
    short.store(false, Ordering::Relaxed);
    bench.later(HOUR).await;
    assert!(bench.has(&one), "there is room again");
}

/// The unused time is counted over restarts and does not depend on the wall clock.
#[test]
fn how_long_an_image_was_not_used_survives_a_restart() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("var/lib/kat")).unwrap();
    let config = AgentConfig::default();
    let ids = BTreeSet::from(["a"]);
    let care = ImageCare::new(&Root::new(root.path()), &config);
    // At first sight an image counts as just used, however long the interval was.
    assert_eq!(care.unused(1, &ids, DAY * 9)["a"], (Duration::ZERO, false));
    assert_eq!(care.unused(1, &ids, HOUR * 20)["a"], (HOUR * 20, false));
    assert_eq!(care.conclude(), None);
    let again = ImageCare::new(&Root::new(root.path()), &config);
    assert_eq!(again.unused(1, &ids, HOUR * 4)["a"], (DAY, true));
    // The count of an image that is used starts again.
    assert!(again.unused(1, &BTreeSet::new(), HOUR).is_empty());
    assert_eq!(again.unused(1, &ids, HOUR)["a"], (Duration::ZERO, false));
    // An unreadable file resets all counts.
    std::fs::write(root.path().join("var/lib/kat/images.json"), "{").unwrap();
    let anew = ImageCare::new(&Root::new(root.path()), &config);
    assert_eq!(
        anew.unused(1, &ids, HOUR * 30)["a"],
        (Duration::ZERO, false)
    );
}
