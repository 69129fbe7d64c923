//! The hook against a socket and a journal of the test.

use std::os::unix::net::{UnixDatagram, UnixListener};

use super::*;

const STATE: &str = r#"{"ociVersion":"1.0.2","id":"f00","status":"created","pid":4711,
    "bundle":"/x","annotations":{"rip.dws.kat.instance":"web-ab12c","other":"1"},"new":[1]}"#;

#[test]
fn state_gives_instance_and_pid() {
    let request = parse_state(STATE.as_bytes()).unwrap();
    assert_eq!(
        (request.instance.as_str(), request.pid),
        ("web-ab12c", 4711)
    );
}

#[test]
fn bad_states_are_named() {
    for (text, expected) in [
        ("", "malformed"),
        ("[]", "no annotation"),
        ("7", "malformed"),
        ("{}", "no annotation"),
        (&STATE.replace("4711", "0"), "pid 0"),
        (&STATE.replace("4711", "-4"), "pid -4"),
        (&STATE.replace("4711", "99999999999"), "malformed"),
        (&STATE.replace("web-ab12c", "../etc"), "instance"),
        (&STATE.replace("\"web-ab12c\"", "7"), "malformed"),
    ] {
        let error = parse_state(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let large = vec![b' '; (1 << 20) + 1];
    assert!(matches!(parse_state(&large), Err(HookError::TooLarge)));
}

fn options(folder: &Path) -> HookOptions {
    HookOptions {
        socket: folder.join("net.sock"),
        journal: folder.join("journal.sock"),
        cgroup: folder.join("cgroup"),
        timeout: Duration::from_millis(400),
    }
}

#[test]
fn a_refusal_reaches_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let cgroup = "0::/user.slice/user-20001.slice/user@20001.service/app.slice/kat-default-web-ab12c.service/runtime\n";
    std::fs::write(&options.cgroup, cgroup).unwrap();
    let journal = UnixDatagram::bind(&options.journal).unwrap();
    let listener = UnixListener::bind(&options.socket).unwrap();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        (&stream)
            .write_all(b"{\"error\":\"no\\nKAT_FORGED=1\"}\n")
            .unwrap();
        line
    });
    let error = run(STATE.as_bytes(), &options).unwrap_err();
    assert!(matches!(error, HookError::Refused(_)));
    assert_eq!(
        server.join().unwrap(),
        "{\"instance\":\"web-ab12c\",\"pid\":4711}\n"
    );
    let mut buffer = [0; 1024];
    let length = journal.recv(&mut buffer).unwrap();
    let entry = std::str::from_utf8(&buffer[..length]).unwrap();
    let lines: Vec<&str> = entry.lines().collect();
    assert!(lines.contains(&"PRIORITY=3"));
    assert!(lines.contains(&"KAT_HOOK_ERROR=1"));
    assert!(lines.contains(&"KAT_INSTANCE=web-ab12c"));
    assert!(lines.contains(&"USER_UNIT=kat-default-web-ab12c.service"));
    assert!(!lines.iter().any(|line| line.starts_with("KAT_FORGED")));
}

#[test]
fn a_reason_of_any_length_reaches_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let journal = UnixDatagram::bind(&options.journal).unwrap();
    journal
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let state = format!("{{\"pid\":\"{}\"}}", "x".repeat(900_000));
    run(state.as_bytes(), &options).unwrap_err();
    let mut buffer = [0; 4096];
    let length = journal.recv(&mut buffer).expect("nothing in the journal");
    let entry = std::str::from_utf8(&buffer[..length]).unwrap();
    let message = entry.lines().next().unwrap();
    assert!(
        message.contains("the container's state is malformed"),
        "{message}"
    );
    assert!(entry.contains("\nKAT_HOOK_ERROR=1\n"), "{entry}");
}

#[test]
fn silence_ends_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let _listener = UnixListener::bind(&options.socket).unwrap();
    let start = Instant::now();
    let error = run(STATE.as_bytes(), &options).unwrap_err();
    assert!(matches!(error, HookError::Timeout(_)), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// Accepts `lost` calls without a complete answer, and then answers one.
fn forgetful(listener: UnixListener, lost: usize) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut lines = Vec::new();
        for number in 0..=lost {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            lines.push(line);
            let answer: &[u8] = if number < lost { b"{\"err" } else { b"{}\n" };
            (&stream).write_all(answer).unwrap();
        }
        lines
    })
}

#[test]
fn a_call_that_was_cut_off_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let options = HookOptions {
        timeout: Duration::from_secs(10),
        ..options(folder.path())
    };
    let server = forgetful(UnixListener::bind(&options.socket).unwrap(), 3);
    run(STATE.as_bytes(), &options).unwrap();
    let lines = server.join().unwrap();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| *line == lines[0]));
}

#[test]
fn a_socket_that_nobody_listens_on_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let options = HookOptions {
        timeout: Duration::from_secs(10),
        ..options(folder.path())
    };
    drop(UnixListener::bind(&options.socket).unwrap());
    let (socket, next) = (options.socket.clone(), folder.path().join("next.sock"));
    let server = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        let listener = UnixListener::bind(&next).unwrap();
        std::fs::rename(next, socket).unwrap();
        forgetful(listener, 0).join().unwrap()
    });
    run(STATE.as_bytes(), &options).unwrap();
    assert_eq!(server.join().unwrap().len(), 1);
}

#[test]
fn calls_that_are_always_cut_off_end_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let _server = forgetful(UnixListener::bind(&options.socket).unwrap(), 10_000);
    let start = Instant::now();
    let error = run(STATE.as_bytes(), &options).unwrap_err().to_string();
    assert!(error.contains("ended before the answer"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_full_queue_ends_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let listener = UnixListener::bind(&options.socket).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _waits = UnixStream::connect(&options.socket).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(run(STATE.as_bytes(), &options)));
    let outcome = receiver.recv_timeout(Duration::from_secs(5));
    assert!(
        matches!(outcome, Ok(Err(HookError::Timeout(_)))),
        "{outcome:?}"
    );
}

#[test]
fn no_socket_says_what_to_look_at() {
    let folder = tempfile::tempdir().unwrap();
    let error = run(STATE.as_bytes(), &options(folder.path())).unwrap_err();
    assert!(error.to_string().contains("kat-net.socket"), "{error}");
}
