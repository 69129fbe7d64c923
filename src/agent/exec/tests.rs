use std::path::Path;

use rustix::process::{Pid, test_kill_process};

use super::{unit::command, *};
use kat_testing::systemd::fake::{FakeMachine, FakeManager, UnitBehaviour};
use kat_types::assignment::Assignment;

mod machine;

const DEADLINE: Duration = Duration::from_secs(20);

fn assignment() -> Assignment {
    let text = include_str!("../../../tests/render/every-field/assignment.json");
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_command_comes_through_word_by_word() {
    let assignment = assignment();
    let unit = assignment.unit();
    let container = unit.strip_suffix(".service").unwrap();
    let mut request = ExecRequest {
        command: vec!["sh".to_owned(), "-c".to_owned(), "--tty a".to_owned()],
        ..ExecRequest::default()
    };
    let plain = command(&assignment.unit(), &request);
    let podman = ["/usr/bin/podman", "exec", "--detach-keys="];
    let words = ["sh", "-c", "--tty a"];
    assert_eq!(plain, [&podman[..], &[container], &words].concat());
    request.stdin = true;
    request.terminal = Some(TerminalSize {
        rows: 1,
        columns: 2,
    });
    request.term = "xterm".to_owned();
    let terminal = command(&assignment.unit(), &request);
    let options = ["--interactive", "--tty", "--env=TERM=xterm"];
    assert_eq!(
        terminal,
        [&podman[..], &options, &[container], &words].concat()
    );
}

fn group() -> CommandCgroup {
    CommandCgroup::at(Path::new("/nowhere"), "kat-exec-1")
}

fn reins(terminal: Option<Terminal>, manager: Arc<FakeManager>) -> CommandControl {
    CommandControl {
        terminal,
        manager,
        unit: "kat-exec-1.service".to_owned(),
        group: group(),
        signals: 0,
        window: WindowSize::Known,
    }
}

/// conmon before 2.2.0 loses the second of two sizes that it reads together.
#[tokio::test(start_paused = true)]
async fn a_burst_of_window_sizes_is_told_in_time_and_ends_with_the_last_one() {
    let size = |rows| TerminalSize { rows, columns: 80 };
    let (terminal, end) = Terminal::open(size(1)).unwrap();
    let manager = Arc::new(FakeManager::new("user 20000"));
    let told = || {
        let calls = manager.calls();
        calls.iter().filter(|call| call.starts_with("kill")).count()
    };
    let (sizes, said) = mpsc::channel(8);
    let said = stream::unfold(said, |mut said| async move {
        let input = said.recv().await?;
        Some((input, said))
    });
    let reins = reins(Some(terminal.clone()), Arc::clone(&manager));
    let feeding = tokio::spawn(feed(Some(terminal), Box::pin(said), reins));
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(told(), 0, "told without a change");

    // Keys are typed meanwhile.
    for rows in 2..=9 {
        sizes.send(InputFrame::Resize(size(rows))).await.unwrap();
        sizes.send(InputFrame::Data("k".into())).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        assert_eq!(told(), 1);
    }
    sleep(BETWEEN_SIZES - Duration::from_millis(90)).await;
    assert_eq!(told(), 1);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(told(), 2);
    assert_eq!(rustix::termios::tcgetwinsize(&end).unwrap().ws_row, 9);
    sleep(SIZE_AGAIN).await;
    assert_eq!(told(), 3, "the last size is told again");
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(told(), 3, "told without another change");
    drop(sizes);
    timeout(DEADLINE, feeding).await.unwrap().unwrap();
}

/// The receiver is like a program that reads standard input until its end and writes afterwards.
#[tokio::test]
async fn standard_input_can_end_while_the_caller_stays_connected() {
    let (sender, mut receiver) = pipe::pipe().unwrap();
    let (inputs, said) = mpsc::channel(8);
    let said = stream::unfold(said, |mut said| async move {
        let input = said.recv().await?;
        Some((input, said))
    });
    let reins = reins(None, Arc::new(FakeManager::new("user 20000")));
    let feeding = tokio::spawn(feed(Some(sender), Box::pin(said), reins));
    inputs.send(InputFrame::Data("abc".into())).await.unwrap();
    inputs.send(InputFrame::End).await.unwrap();
    let mut heard = Vec::new();
    receiver.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"abc");
    assert!(!feeding.is_finished(), "the caller is there");
    drop(inputs);
    timeout(Duration::from_secs(5), feeding)
        .await
        .unwrap()
        .unwrap();
}

/// A running command and its caller's channels.
struct Talk {
    inputs: mpsc::Sender<InputFrame>,
    outputs: mpsc::Receiver<OutputFrame>,
    manager: Arc<FakeManager>,
    running: tokio::task::JoinHandle<()>,
}

impl Talk {
    fn begin(script: &str, terminal: Option<TerminalSize>) -> Self {
        let request = ExecRequest {
            stdin: true,
            terminal,
            ..ExecRequest::default()
        };
        let (console, streams) = CommandConsole::open(&request).unwrap();
        let (sender, outputs) = mpsc::channel(BUFFER);
        let manager = Arc::new(FakeManager::new("user 20000"));
        let command = RunningCommand {
            unit: TransientUnit {
                name: "kat-exec-1.service".to_owned(),
                description: String::new(),
                command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
                limit: LONGEST,
                ..TransientUnit::default()
            },
            group: group(),
            manager: Arc::<FakeManager>::clone(&manager),
            sender,
            over: CancellationToken::new(),
        };
        let (inputs, said) = mpsc::channel(8);
        let said = stream::unfold(said, |mut said| async move {
            let input = said.recv().await?;
            Some((input, said))
        });
        let running = tokio::spawn(command.run(console, streams, Box::pin(said)));
        Self {
            inputs,
            outputs,
            manager,
            running,
        }
    }

    async fn next(&mut self) -> Option<OutputFrame> {
        let next = timeout(DEADLINE, self.outputs.recv()).await;
        next.expect("the command says nothing")
    }

    /// Reads output until it contains these words.
    async fn says(&mut self, words: &str) -> String {
        let mut heard = String::new();
        while !heard.contains(words) {
            match self.next().await {
                Some(OutputFrame::Data(data)) => heard.push_str(&String::from_utf8_lossy(&data)),
                other => panic!("{other:?} after {heard:?}"),
            }
        }
        heard
    }

    /// Returns all of standard output and standard error, and the last message.
    async fn end(mut self) -> (String, String, OutputFrame) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let last = loop {
            match self.next().await.unwrap() {
                OutputFrame::Data(data) => out.extend_from_slice(&data),
                OutputFrame::Error(data) => err.extend_from_slice(&data),
                last => break last,
            }
        };
        assert_eq!(self.next().await, None, "nothing comes after the end");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(out), text(err), last)
    }
}

#[tokio::test]
async fn a_command_ends_with_its_own_code_after_all_that_it_said() {
    for code in [0, 1, 9, 125, 127, 130, 254, 255] {
        let talk = Talk::begin(&format!("cat; echo err >&2; exit {code}"), None);
        talk.inputs
            .send(InputFrame::Data("said".into()))
            .await
            .unwrap();
        talk.inputs.send(InputFrame::End).await.unwrap();
        let (out, err, last) = talk.end().await;
        assert_eq!((out.as_str(), err.as_str()), ("said", "err\n"));
        assert_eq!(last, OutputFrame::Exit(code));
    }
}

/// The caller reads slowly, as through a pager or a slow connection.
#[tokio::test]
async fn a_slow_reader_gets_all_output_of_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let ended = folder.path().join("ended");
    let lines = "for i in $(seq 40); do echo $i; sleep 0.01; done";
    let talk = Talk::begin(&format!("{lines}; touch {}", ended.display()), None);
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !ended.exists() {
        assert!(tokio::time::Instant::now() < deadline, "it does not end");
        sleep(Duration::from_millis(20)).await;
    }
    sleep(LAST_WORDS + Duration::from_millis(500)).await;
    let (out, _, last) = talk.end().await;
    let all: String = (1..=40).map(|number| format!("{number}\n")).collect();
    assert_eq!((out, last), (all, OutputFrame::Exit(0)));
}

#[tokio::test]
async fn a_command_whose_caller_is_gone_already_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    let began = folder.path().join("began");
    let talk = Talk::begin(&format!("touch {}", began.display()), None);
    drop(talk.inputs);
    timeout(DEADLINE, talk.running).await.unwrap().unwrap();
    assert!(!began.exists());
    assert!(talk.manager.calls().is_empty());
}

#[tokio::test]
async fn a_command_that_a_signal_ends_says_which() {
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130)] {
        let talk = Talk::begin(&format!("kill -{signal} $$"), None);
        assert_eq!(talk.end().await.2, OutputFrame::Exit(code), "{signal}");
    }
}

/// The caller closes its input, or stops reading the output.
#[tokio::test]
async fn a_command_ends_with_its_caller() {
    for leaves_by_input in [true, false] {
        let mut talk = Talk::begin("echo $$ x; exec sleep 1000", None);
        let said = talk.says("x").await;
        let pid: i32 = said.split(' ').next().unwrap().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        assert!(test_kill_process(pid).is_ok());
        let Talk {
            inputs,
            outputs,
            running,
            ..
        } = talk;
        let kept = if leaves_by_input {
            drop(inputs);
            (None, Some(outputs))
        } else {
            drop(outputs);
            (Some(inputs), None)
        };
        timeout(DEADLINE, running).await.unwrap().unwrap();
        assert!(test_kill_process(pid).is_err(), "it runs on");
        drop(kept);
    }
}

/// The connection to the user manager is lost because the manager re-executes, while the caller is
/// connected or just as the caller leaves. The command has not ended then.
#[tokio::test]
async fn a_command_whose_manager_is_lost_is_stopped_before_it_counts_as_ended() {
    for caller_goes in [false, true] {
        let mut talk = Talk::begin("echo $$ x; exec sleep 1000", None);
        let said = talk.says("x").await;
        let pid: i32 = said.split(' ').next().unwrap().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        let manager = Arc::clone(&talk.manager);
        let stops = async |count: usize| {
            let stopped = || {
                manager
                    .calls()
                    .iter()
                    .filter(|call| call.starts_with("stop"))
                    .count()
            };
            let asked = async {
                while stopped() < count {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(DEADLINE, asked).await.expect("nobody stops it");
        };
        if caller_goes {
            manager.fail_next("stop", SystemdError::Masked("busy".to_owned()));
            drop(std::mem::replace(&mut talk.inputs, mpsc::channel(1).0));
            stops(1).await;
        }
        manager.set_unreachable(Some("executed anew"));
        stops(if caller_goes { 2 } else { 1 }).await;
        assert!(!talk.running.is_finished(), "it is said to have ended");
        assert!(test_kill_process(pid).is_ok());
        manager.set_unreachable(None);
        if !caller_goes {
            let last = talk.next().await;
            assert!(
                matches!(&last, Some(OutputFrame::Failed(body)) if body.message.contains("connection ended")),
                "{last:?}"
            );
        }
        timeout(DEADLINE, talk.running).await.unwrap().unwrap();
        assert!(test_kill_process(pid).is_err(), "it runs on");
    }
}

#[tokio::test]
async fn a_callers_signals_reach_the_command() {
    let mut talk = Talk::begin("echo ready; cat", None);
    talk.says("ready").await;
    for signal in [PassedSignal::Interrupt, PassedSignal::Terminate] {
        talk.inputs.send(InputFrame::Signal(signal)).await.unwrap();
    }
    talk.inputs.send(InputFrame::End).await.unwrap();
    let manager = Arc::clone(&talk.manager);
    assert_eq!(talk.end().await.2, OutputFrame::Exit(0));
    let calls = manager.calls();
    let signals = calls.iter().filter(|call| call.contains("-signal-"));
    let expected = [1, 2].map(|n| format!("run_transient kat-exec-1-signal-{n}.service"));
    assert!(signals.eq(&expected), "{calls:?}");
}

#[tokio::test]
async fn a_command_that_is_stopped_on_its_machine_says_so() {
    let mut talk = Talk::begin("echo ready; exec sleep 1000", None);
    talk.says("ready").await;
    let stopped = talk.manager.stop("kat-exec-1.service", DEADLINE).await;
    assert!(stopped.is_ok(), "{stopped:?}");
    let (_, _, OutputFrame::Failed(body)) = talk.end().await else {
        panic!("it has a code");
    };
    assert!(body.message.contains("ended on its machine"), "{body:?}");
}

#[tokio::test]
async fn a_command_hears_of_its_terminals_size() {
    let size = TerminalSize {
        rows: 33,
        columns: 101,
    };
    let script =
        "trap 'stty size; exit 4' WINCH; stty size; echo ready; while :; do sleep 0.05; done";
    let mut talk = Talk::begin(script, Some(size));
    assert!(talk.says("ready").await.starts_with("33 101"));
    let smaller = TerminalSize { rows: 20, ..size };
    talk.inputs.send(InputFrame::Resize(smaller)).await.unwrap();
    talk.says("20 101").await;
    assert_eq!(talk.end().await.2, OutputFrame::Exit(4));
}

/// A command whose output is not read blocks, and so does a caller whose command does not read.
/// Neither fills the agent's memory.
#[tokio::test]
async fn a_session_holds_a_bounded_amount_in_each_direction() {
    let talk = Talk::begin("exec cat /dev/zero", None);
    let full = async {
        while talk.outputs.len() < BUFFER {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, full).await.unwrap();
    assert_eq!(talk.outputs.max_capacity(), BUFFER);
    drop(talk);

    let talk = Talk::begin("exec sleep 1000", None);
    let mut taken = 0;
    while let Ok(sent) = timeout(
        Duration::from_secs(1),
        talk.inputs.send(InputFrame::Data(vec![0; MOST].into())),
    )
    .await
    {
        sent.unwrap();
        taken += 1;
        assert!(taken < 100, "{taken} pieces are taken that nobody reads");
    }
}
