use std::{
    fs,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

fn run(words: &[String]) -> Output {
    let (program, arguments) = words.split_first().unwrap();
    Command::new(program).args(arguments).output().unwrap()
}

#[test]
fn a_probe_enters_a_group_of_its_own_in_the_container_and_gains_nothing() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("run/user/20007");
    fs::create_dir_all(&folder).unwrap();
    let id = "0a1b".repeat(16);
    fs::write(folder.join("kat-default-web-aaaaa.cid"), format!("{id}\n")).unwrap();
    let inside = RunningContainer {
        uid: 20_007,
        stem: "kat-default-web-aaaaa".to_owned(),
        main_pid: 42,
        control_group: "/user.slice/kat-default-web-aaaaa.service".to_owned(),
    };
    let group = inside.group(root.path(), "health-web-7.service").unwrap();
    let path = format!(
        "/sys/fs/cgroup/user.slice/kat-default-web-aaaaa.service/libpod-payload-{id}/health-web-7"
    );
    let words = group.probe(&["/bin/check".to_owned(), "a b".to_owned()]);
    assert_eq!(words[..4], ["/bin/sh", "-c", BEGIN, &path]);
    let entered = [
        "/usr/bin/nsenter --user --preserve-credentials --target 42",
        "/usr/bin/crun --root /run/user/20007/crun exec --no-new-privs --cgroup=/health-web-7",
        &format!("{id} /bin/check a b"),
    ];
    assert_eq!(words[4..].join(" "), entered.join(" "));
    assert_eq!(words.last().map(String::as_str), Some("a b"));
    assert_eq!(group.end(), ["/bin/sh", "-c", END, &path]);
}

#[test]
fn a_group_is_made_for_a_command_and_needs_its_container() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kat-exec-1");
    let words = ["/usr/bin/printf", "%s.", "a b", "$0"].map(str::to_owned);
    let began = run(&CommandCgroup::at(&path, "kat-exec-1").begin(words.clone()));
    assert_eq!(began.stdout, b"a b.$0.");
    assert!(path.is_dir());
    let gone = folder.path().join("gone/kat-exec-1");
    let refused = run(&CommandCgroup::at(&gone, "kat-exec-1").begin(words));
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(refused.stdout, b"");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("its container is not there any more"),
        "{said}"
    );
}

/// A file stands in for the kernel's `cgroup.kill`: it must be written before the folder can be
/// removed.
#[test]
fn a_group_ends_with_all_that_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kat-exec-1");
    let group = CommandCgroup::at(&path, "kat-exec-1");
    fs::create_dir(&path).unwrap();
    assert!(run(&group.end()).status.success());
    assert!(!path.exists());
    // The group may already be gone together with its container.
    let gone = run(&group.end());
    assert_eq!((gone.status.code(), gone.stderr), (Some(0), vec![]));

    fs::create_dir(&path).unwrap();
    let process = path.join("process");
    fs::write(&process, "").unwrap();
    let kill = path.join("cgroup.kill");
    let kernel = thread::spawn(move || {
        let began = Instant::now();
        while fs::read_to_string(&kill).ok().as_deref() != Some("1\n") {
            assert!(began.elapsed() < DEADLINE, "nothing is killed");
            thread::sleep(Duration::from_millis(5));
        }
        fs::remove_file(&process).unwrap();
        // `cgroup.kill` may be written once more before the folder is removed.
        while fs::remove_file(&kill).is_ok() || kill.parent().is_some_and(Path::exists) {
            assert!(began.elapsed() < DEADLINE, "the group stays");
            thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(run(&group.end()).status.success());
    kernel.join().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_signal_is_for_the_command_or_as_from_a_key_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let group = CommandCgroup::at(folder.path(), "kat-exec-1");
    let procs = folder.path().join("cgroup.procs");
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(150));
        fs::write(procs, "4711\n4712\n").unwrap();
    });
    let heard = |whom| {
        let words = [whom, "/bin/echo", "kill"].map(str::to_owned);
        run(&group.script(SIGNAL, words)).stdout
    };
    assert_eq!(heard("first"), b"kill 4711\n");
    assert_eq!(heard("all"), b"kill 4711 4712\n");
    late.join().unwrap();
    let entered = "/usr/bin/nsenter --user --preserve-credentials --target 42";
    for (signal, whom, name) in [
        (PassedSignal::Terminate, "first", "TERM"),
        (PassedSignal::Interrupt, "all", "INT"),
    ] {
        let words = format!("{whom} {entered} /usr/bin/kill -s {name}");
        let unit = group.signal(signal, 2);
        assert_eq!(unit.name, "kat-exec-1-signal-2.service");
        assert_eq!(unit.command[4..].join(" "), words);
    }
}
