//! `katcall exec`, `port-forward`, `cp` and `top`, mostly against the real API, whose sessions echo
//! their input.

use std::{
    fs::File,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::Stdio,
};

use insta::assert_snapshot;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::json;

use super::{
    fake_api::{Fake, error},
    fixtures::{INSTANCES, instance},
    real_api::with_token,
    run_katcall::Program,
    support::{Server, with_instance},
};
use kat_api::SessionRequest;

async fn server() -> (Server, Program) {
    let server = Server::start().await;
    with_instance(&server).await;
    let socket = server.socket("admin.sock").display().to_string();
    let program = Program::alone().variable("KAT_CONNECTION", &socket);
    (server, program.variable("KAT_NAMESPACE", "shop"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_piped_in_comes_out_and_the_exit_code_is_the_commands() {
    let (server, program) = server().await;
    let file = program.file("said", "hello\nthere");
    let mut command = program.command(&["exec", "-i", "web-abcde", "--", "sh", "-c", "x y"]);
    let output = command.stdin(File::open(file).unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"hello\nthere");
    assert_eq!(output.stderr, b"web-abcde");
    let begun = server.echo.begun.lock().pop().unwrap();
    let SessionRequest::Exec(request) = begun else {
        panic!("{begun:?}");
    };
    assert_eq!(request.command, ["sh", "-c", "x y"]);
    assert!(request.stdin && request.terminal.is_none() && request.term.is_empty());
    server.stop().await;
}

/// The first signal is passed on to the command, the second one ends katcall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_is_passed_on_and_the_next_ends_it() {
    let (server, program) = server().await;
    for (signal, name, code) in [
        (Signal::SIGTERM, "SIGTERM", 143),
        (Signal::SIGINT, "SIGINT", 130),
        (Signal::SIGHUP, "SIGHUP", 129),
        (Signal::SIGQUIT, "SIGQUIT", 131),
    ] {
        let mut command = program.command(&["exec", "web-abcde", "--", "sleep", "9"]);
        let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = running.stderr.take().unwrap();
        let mut said = [0; 9];
        stderr.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"web-abcde");
        let pid = Pid::from_raw(running.id().try_into().unwrap());
        kill(pid, signal).unwrap();
        let mut heard = vec![0; name.len()];
        stderr.read_exact(&mut heard).unwrap();
        assert_eq!(heard, name.as_bytes());
        assert!(running.try_wait().unwrap().is_none(), "{name} ends it");
        kill(pid, signal).unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(code));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_run_is_said() {
    let (server, program) = server().await;
    assert_snapshot!(program.run(&["exec", "web-abcd", "--", "true"]), @r"
    exit: 3
    --- stderr
    error: there is no workload or instance `web-abcd` with something that runs in namespace `shop`

    hint: did you mean `web-abcde`?
    ");
    assert_snapshot!(program.run(&["exec", "web", "--", "true"]), @r"
    exit: 1
    --- stderr
    error: no instance of workload `web` runs

    hint: `katcall describe workload web -n shop` says why
    ");
    assert_snapshot!(program.run(&["exec", "-it", "web-abcde", "--", "sh"]), @r"
    exit: 2
    --- stderr
    error: --tty needs a terminal, and stdin is none

    hint: without -t the command reads what is piped into katcall, with -i
    ");
    assert!(program.run(&["exec", "web-abcde"]).starts_with("exit: 2\n"));
    server.stop().await;
}

/// A local error is the reported one, even though the container's tar also fails because its input
/// ends early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_read_here_is_said_when_it_is_copied() {
    let (server, program) = server().await;
    let folder = program.file("folder/a", "one");
    let socket = std::path::Path::new(&folder).with_file_name("socket");
    let _socket = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let text = program.run(&["cp", "folder", "web-abcde:/tmp/"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(text.contains("error: `folder`: "), "{text}");
    assert!(text.contains("socket can not be archived"), "{text}");
    // Without a local error, the error of the container's tar is reported.
    let text = program.run(&["cp", "folder/a", "web-abcde:/tmp/"]);
    assert!(text.contains("ended with 7: web-abcde"), "{text}");
    server.stop().await;
}

/// The current usage, computed from two samples: a quarter of a processor in one second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_instances_take_is_counted_when_it_is_asked_for() {
    let (server, program) = server().await;
    assert_snapshot!(program.run(&["top", "instances"]), @r"
    exit: 0
    --- stdout
    NAME        NODE   CPU    MEMORY
    web-abcde   n1     250m   3.0Mi
    ");
    let nodes = program.run(&["top", "nodes"]);
    assert!(nodes.starts_with("exit: 0\n"), "{nodes}");
    assert!(nodes.contains("n1") && nodes.contains("250m"), "{nodes}");
    *server.echo.away.lock() = Some("can't be reached".to_owned());
    let away = program.run(&["top", "instances"]);
    assert!(
        away.contains("warning: the machine `n1` can't be reached"),
        "{away}"
    );
    server.stop().await;
}

/// A caller who may deploy to a namespace sees the usage of its instances, and on a terminal the
/// machines that do not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_a_namespace_sees_what_its_instances_take() {
    let (server, _) = server().await;
    let authority = server.authority.certificate_pem();
    let program = with_token(&server, &server.deploy, authority);
    assert_snapshot!(program.run(&["top", "instances", "-n", "shop"]), @r"
    exit: 0
    --- stdout
    NAME        NODE   CPU    MEMORY
    web-abcde   n1     250m   3.0Mi
    ");
    let refused = program.run(&["top", "instances", "-n", "default"]);
    assert!(refused.starts_with("exit: 1\n"), "{refused}");
    assert!(refused.contains("of the namespace `default`"), "{refused}");

    let mut live = program.spawn_on_terminal(&["top", "instances", "-n", "shop"]);
    live.stdout_says("250m");
    *server.echo.away.lock() = Some("can't be reached".to_owned());
    live.stdout_says("the machine `n1` can't be reached");
    live.interrupt();
    assert!(live.end().starts_with("exit: 130\n"));
    server.stop().await;
}

/// A temporary error does not end a live view: the table stays, with the error below it.
#[test]
fn a_live_view_outlasts_what_can_pass() {
    const USAGE: &str = "GET /v1alpha1/n/default/usage";
    let fake = Fake::start();
    fake.list(INSTANCES, &[instance("web-aaaaa", "Running")]);
    let at_first = |status, word, message| fake.reply(USAGE, status, error(word, message));
    at_first(429, "TooManyRequests", "asked too often");
    fake.reply(USAGE, 200, json!({"instances": [], "away": []}));
    at_first(404, "NotFound", "it is gone");
    at_first(503, "Unavailable", "nobody leads");
    at_first(401, "Unauthorized", "no such token");
    let program = Program::of(&fake);
    let mut live = program.spawn_on_terminal(&["top", "instances"]);
    live.stdout_says("web-aaaaa");
    live.stdout_says("it is gone; trying again");
    live.stdout_says("nobody leads; trying again");
    let end = live.end();
    assert!(end.starts_with("exit: 1\n"), "{end}");
    assert!(end.contains("error: no such token"), "{end}");
    // The last table stays visible.
    let screens: Vec<&str> = end.split("\u{1b}[H\u{1b}[J").skip(1).collect();
    assert!(screens.len() >= 3, "{end}");
    for screen in screens {
        assert!(screen.contains("web-aaaaa"), "{screen}");
    }
    // Before the first table, a missing namespace ends the view.
    let program = Program::of(&fake);
    fake.instead(USAGE, 404, error("NotFound", "no such namespace"));
    let end = program.spawn_on_terminal(&["top", "instances"]).end();
    assert!(end.starts_with("exit: 3\n"), "{end}");
}

#[test]
fn labels_select_whose_usage_is_shown() {
    let fake = Fake::start();
    let mut of_shop = instance("web-aaaaa", "Running");
    of_shop["metadata"]["labels"] = json!({"team": "shop"});
    fake.list(INSTANCES, &[of_shop, instance("web-bbbbb", "Running")]);
    fake.instead(
        "GET /v1alpha1/n/default/usage",
        200,
        json!({"instances": [], "away": []}),
    );
    let program = Program::of(&fake);
    for words in [
        &["top", "-l", "team=shop"][..],
        &["top", "instances", "-l", "team"],
    ] {
        let text = program.run(words);
        assert!(text.starts_with("exit: 0\n"), "{words:?}: {text}");
        assert!(text.contains("web-aaaaa"), "{words:?}: {text}");
        assert!(!text.contains("web-bbbbb"), "{words:?}: {text}");
    }
    let text = program.run(&["top", "web-aaaaa", "-l", "team=shop"]);
    assert!(text.starts_with("exit: 2\n"), "{text}");
    assert!(text.contains("exclude each other"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_led_to_an_instance() {
    let (server, program) = server().await;
    // The port stays bound until the first attempt has failed, so no other program can take it.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    let taken = program.run(&["port-forward", "web-abcde", &format!("{port}:80")]);
    assert!(taken.starts_with("exit: 1\n"), "{taken}");
    assert!(
        taken.contains(&format!("port {port} of 127.0.0.1 is taken")),
        "{taken}"
    );
    assert!(taken.contains("0 for any: `0:80`"), "{taken}");
    drop(free);
    let mut running = program.spawn(&["port-forward", "web-abcde", &format!("{port}:80")]);
    running.stderr_says("forwards to port 80 of `web-abcde`");
    let mut streams = Vec::new();
    for number in 0..5_u8 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(&[number; 100_000]).unwrap();
        streams.push(stream);
    }
    for (number, mut stream) in (0..5_u8).zip(streams) {
        // All data comes back, also after this side has closed its direction.
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, vec![number; 100_000]);
    }
    running.interrupt();
    assert!(running.end().starts_with("exit: 130\n"));
    server.stop().await;
}

/// katcall reaches its limit of open files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_can_not_be_taken_ends_no_other() {
    let (server, program) = server().await;
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut running = program.spawn(&["port-forward", "web-abcde", &format!("{port}:80")]);
    running.stderr_says("forwards to port 80 of `web-abcde`");
    let pid = rustix::process::Pid::from_raw(running.id().try_into().unwrap());
    let files = |most| {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(1024),
        };
        prlimit(pid, Resource::Nofile, limit).unwrap();
    };
    let connect = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"said").unwrap();
        stream
    };
    let mut heard = [0; 4];
    let mut before = connect();
    before.read_exact(&mut heard).unwrap();
    files(3);
    let mut late = connect();
    running.stderr_says("a connection is not taken yet");
    before.write_all(b"more").unwrap();
    before.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"more");
    files(1024);
    late.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"said");
    running.interrupt();
    assert!(running.end().starts_with("exit: 130\n"));
    server.stop().await;
}
