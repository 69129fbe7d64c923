//! Journal reading, with scripts in place of journalctl.

use std::{fs, os::unix::fs::PermissionsExt};

use futures_util::{FutureExt, StreamExt};

use super::*;

struct Script {
    folder: tempfile::TempDir,
}

impl Script {
    fn new(body: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journalctl");
        fs::write(
            &path,
            format!("#!/bin/sh\ncd {}\n{body}", folder.path().display()),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn journal(&self) -> Journal {
        Journal::with_program(&self.folder.path().join("journalctl"))
    }

    async fn all(&self, query: &JournalQuery) -> Vec<Result<LogEntry, LogError>> {
        self.journal().entries(query).collect().await
    }
}

fn line(number: u32, fields: &str) -> String {
    format!(
        r#"{{"__CURSOR":"c{number}","__REALTIME_TIMESTAMP":"{number}","MESSAGE":"{number}"{fields}}}"#
    )
}

fn query() -> JournalQuery {
    JournalQuery {
        uid: 20_001,
        unit: "kat-default-web-ab12c.service".to_owned(),
        ..JournalQuery::default()
    }
}

#[test]
fn asks_for_the_units_of_the_user_only() {
    let query = JournalQuery {
        since: Some(SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_042)),
        until: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_060)),
        tail: Some(5),
        follow: true,
        this_boot: true,
        ..query()
    };
    let all = arguments(&query);
    for wanted in [
        "--boot",
        "--follow",
        "--lines=5",
        "--all",
        "--since=@1700000000.000042",
        "--until=@1700000060.000000",
    ] {
        assert!(
            all.iter().any(|argument| argument == wanted),
            "{wanted} in {all:?}"
        );
    }
    let place = all
        .iter()
        .position(|argument| argument == "_UID=20001")
        .unwrap();
    assert_eq!(
        all[place..],
        [
            "_UID=20001",
            "CONTAINER_NAME=kat-default-web-ab12c",
            "CONTAINER_NAME=systemd-kat-default-web-ab12c",
            "+",
            "_UID=20001",
            "_SYSTEMD_USER_UNIT=kat-default-web-ab12c.service",
            "+",
            "_UID=20001",
            "_TRANSPORT=stdout",
            "SYSLOG_IDENTIFIER=kat-default-web-ab12c",
            "+",
            "_UID=20001",
            "USER_UNIT=kat-default-web-ab12c.service",
            "+",
            "_UID=0",
            "KAT_HOOK_ERROR=fenced",
            "USER_UNIT=kat-default-web-ab12c.service",
        ]
    );
    let one_run = arguments(&JournalQuery {
        container: Some("ab12".to_owned()),
        newest_first: true,
        ..query.clone()
    });
    assert!(one_run.contains(&"--reverse".to_owned()));
    assert!(one_run.ends_with(&["CONTAINER_ID_FULL=ab12".to_owned()]));
    let program = JournalQuery {
        program_output_only: true,
        after_cursor: Some("s=1".to_owned()),
        tail: None,
        ..query
    };
    let all = arguments(&program);
    assert!(all.contains(&"--after-cursor=s=1".to_owned()));
    assert!(all.contains(&"--no-tail".to_owned()));
    assert!(
        !all.iter()
            .any(|argument| argument.starts_with("--since") || argument == "+")
    );
}

#[tokio::test]
async fn gives_entries_and_drops_podmans_own() {
    let text = [
        line(1, r#","CONTAINER_NAME":"x""#),
        line(2, r#","PODMAN_EVENT":"start""#),
        line(3, ""),
        "not json".to_owned(),
        line(4, r#","CONTAINER_ID_FULL":"y""#),
    ]
    .join("\n");
    let script = Script::new(&format!("cat <<'EOF'\n{text}\nEOF\n"));
    let found = script.all(&query()).await;
    let texts: Vec<String> = found
        .iter()
        .map(|item| match item {
            Ok(entry) => entry.text(),
            Err(error) => error.to_string().chars().take(21).collect(),
        })
        .collect();
    assert_eq!(texts, ["1", "3", "an entry was left out", "4"]);
    let program = JournalQuery {
        program_output_only: true,
        ..query()
    };
    let found = script.all(&program).await;
    let texts: Vec<String> = found.into_iter().flatten().map(|e| e.text()).collect();
    assert_eq!(texts, ["1", "4"]);
}

#[tokio::test]
async fn passes_over_an_entry_that_is_too_long() {
    let script = Script::new(&format!(
        "head -c 1100000 /dev/zero | tr '\\0' a; echo\necho '{}'\n",
        line(2, "")
    ));
    let found = script.all(&query()).await;
    assert!(matches!(found[0], Err(LogError::TooLong)));
    assert_eq!(found[1].as_ref().unwrap().text(), "2");
    assert_eq!(found.len(), 2);
}

#[tokio::test]
async fn a_failure_carries_journalctls_words() {
    let script = Script::new(&format!(
        "echo '{}'\necho 'no journal here' >&2\nexit 1\n",
        line(1, "")
    ));
    let found = script.all(&query()).await;
    assert_eq!(found.len(), 2);
    let error = found[1].as_ref().unwrap_err();
    assert!(!error.is_passing());
    assert!(
        error
            .to_string()
            .contains("exit status: 1: no journal here"),
        "{error}"
    );

    let missing = Journal::with_program(Path::new("/nonexistent/journalctl"));
    let found: Vec<_> = missing.entries(&query()).collect().await;
    assert_eq!(found.len(), 1);
    assert!(matches!(found[0], Err(LogError::Start { .. })));
}

#[tokio::test]
async fn dropping_a_follower_ends_its_child() {
    let script = Script::new(&format!(
        "echo $$ > pid\necho '{}'\nexec sleep 1000\n",
        line(1, "")
    ));
    let mut entries = script.journal().entries(&JournalQuery {
        follow: true,
        ..query()
    });
    assert_eq!(entries.next().await.unwrap().unwrap().text(), "1");
    let pid = fs::read_to_string(script.folder.path().join("pid")).unwrap();
    let alive = || {
        fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
            .is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(alive());
    drop(entries);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while alive() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn synchronizing_waits_for_journalctl_and_says_why_it_failed() {
    let script = Script::new("echo \"$@\" > arguments\necho done > done\n");
    script.journal().synchronize().await.unwrap();
    let written = |name| fs::read_to_string(script.folder.path().join(name)).unwrap();
    assert_eq!(written("arguments"), "--sync\n");
    assert_eq!(written("done"), "done\n");

    let failing = Script::new("echo 'no journald here' >&2\nexit 1\n");
    let error = failing.journal().synchronize().await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("exit status: 1: no journald here"),
        "{error}"
    );
}

#[tokio::test]
async fn journald_is_asked_once_for_all_callers_that_wait() {
    for end in [0, 1] {
        let script = Script::new(&format!("echo asked >> asked\nexit {end}\n"));
        let journal = script.journal();
        let calls = (0..20).map(|_| journal.synchronize());
        for result in futures_util::future::join_all(calls).await {
            assert_eq!(result.is_ok(), end == 0, "{result:?}");
        }
        let asked = || fs::read_to_string(script.folder.path().join("asked")).unwrap();
        assert_eq!(asked(), "asked\n");
        // A later caller has lines of its own to wait for.
        let later = journal.synchronize().await;
        assert_eq!(later.is_ok(), end == 0, "{later:?}");
        assert_eq!(asked(), "asked\nasked\n");
    }
}

#[tokio::test]
async fn a_caller_that_is_not_polled_keeps_no_other_one_waiting() {
    let script = Script::new("exit 0\n");
    let journal = script.journal();
    let mut first = journal.synchronize();
    assert!((&mut first).now_or_never().is_none());
    let second = timeout(Duration::from_secs(30), journal.synchronize());
    second.await.unwrap().unwrap();
}
