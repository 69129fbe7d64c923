//! Transient units with streams of their caller's.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::Path,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    ConformanceError, ConformanceResult, ConformanceSuite, LIMIT, PROBE, SIGTERM, called, equal,
    unlike,
};
use kat_systemd::{
    CommandStreams, JobResult, LoadState, ProcessEnd, SystemdError, TransientUnit, UnitManager,
};

/// The caller's ends of a command's streams.
struct CallerStreams {
    stdin: File,
    stdout: File,
    stderr: File,
}

fn pipes() -> io::Result<(CallerStreams, CommandStreams)> {
    let (their_in, stdin) = io::pipe()?;
    let (stdout, their_out) = io::pipe()?;
    let (stderr, their_err) = io::pipe()?;
    let ends = CallerStreams {
        stdin: OwnedFd::from(stdin).into(),
        stdout: OwnedFd::from(stdout).into(),
        stderr: OwnedFd::from(stderr).into(),
    };
    let streams = CommandStreams {
        stdin: Some(their_in.into()),
        stdout: their_out.into(),
        stderr: their_err.into(),
    };
    Ok((ends, streams))
}

fn script(text: &str, limit: Duration) -> TransientUnit {
    TransientUnit {
        name: PROBE.to_owned(),
        description: "Conformance command".to_owned(),
        command: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(),
        limit,
        ..TransientUnit::default()
    }
}

fn broken(error: &io::Error) -> ConformanceError {
    unlike("files of a command", "no error", error)
}

/// The part of the suite about commands with streams of the caller's. The fake runs them as real
/// processes in real time, so this does not work with a paused clock.
///
/// # Errors
///
/// The first requirement that does not hold.
pub async fn run_commands(manager: &dyn UnitManager) -> Result<(), ConformanceError> {
    let folder = Path::new("");
    ConformanceSuite { manager, folder }
        .runs_commands_with_files()
        .await
}

impl ConformanceSuite<'_> {
    async fn runs_commands_with_files(&self) -> ConformanceResult {
        let short = Duration::from_secs(2);
        for (text, limit, expected) in [
            ("cat; echo err >&2", LIMIT, ProcessEnd::Code(0)),
            ("cat; echo err >&2; exit 7", LIMIT, ProcessEnd::Code(7)),
            ("cat; echo err >&2; exit 255", LIMIT, ProcessEnd::Code(255)),
            (
                "cat; echo err >&2; kill -TERM $$",
                LIMIT,
                ProcessEnd::Signal(SIGTERM),
            ),
            (
                "cat; echo err >&2; exec sleep 1000",
                short,
                ProcessEnd::Stopped,
            ),
        ] {
            let (ends, streams) = pipes().map_err(|error| broken(&error))?;
            let unit = script(text, limit);
            let talking = tokio::task::spawn_blocking(move || talk(ends));
            let ended = called(text, self.manager.run_with(&unit, streams).await)?;
            equal(text, &expected, &ended)?;
            // The reading task returns only once all of the command's ends are closed.
            let said = tokio::time::timeout(LIMIT, talking).await;
            match said {
                Ok(Ok(Ok((out, err)))) => {
                    equal(text, "said\n", out.as_str())?;
                    equal(text, "err\n", err.as_str())?;
                }
                other => return Err(unlike(text, "the end of what it wrote", &other)),
            }
            self.leaves_nothing().await?;
        }
        self.is_stopped_and_told().await?;
        self.sees_to_what_it_left().await
    }

    /// The command's `afterwards` has run when its end is reported, however it ended.
    async fn sees_to_what_it_left(&self) -> ConformanceResult {
        let short = Duration::from_secs(2);
        for (text, limit) in [
            ("[ \"$WORD\" = 'a $b' ]; exit $?", LIMIT),
            ("exit 3", LIMIT),
            ("exec sleep 1000", short),
        ] {
            let mark = std::env::temp_dir().join(format!("kat-conformance-{}", std::process::id()));
            let touch = ["/usr/bin/touch".to_owned(), mark.display().to_string()];
            let unit = TransientUnit {
                environment: vec!["WORD=a $b".to_owned()],
                afterwards: touch.to_vec(),
                ..script(text, limit)
            };
            let (_ends, streams) = pipes().map_err(|error| broken(&error))?;
            let ended = called(text, self.manager.run_with(&unit, streams).await)?;
            let expected = match text {
                "exit 3" => ProcessEnd::Code(3),
                "exec sleep 1000" => ProcessEnd::Stopped,
                _ => ProcessEnd::Code(0),
            };
            equal(text, &expected, &ended)?;
            std::fs::remove_file(mark).map_err(|error| broken(&error))?;
            self.leaves_nothing().await?;
        }
        Ok(())
    }

    /// A signal reaches the command, and a stop ends it.
    async fn is_stopped_and_told(&self) -> ConformanceResult {
        let (mut ends, streams) = pipes().map_err(|error| broken(&error))?;
        let unit = script(
            "trap 'echo told' WINCH; echo ready; while :; do sleep 0.05; done",
            LIMIT,
        );
        let step = "a command that is stopped";
        let running = self.manager.run_with(&unit, streams);
        let stopping = async {
            // The command starts while this thread reads.
            let (ends, first) = blocking(move || {
                let first = some(&mut ends.stdout);
                (ends, first)
            })
            .await?;
            equal(step, "ready\n", first.as_str())?;
            called(step, self.manager.kill(PROBE, 28).await)?;
            let mut ends = ends;
            let second = blocking(move || some(&mut ends.stdout)).await?;
            equal(step, "told\n", second.as_str())?;
            self.job(step, self.manager.stop(PROBE, LIMIT).await, JobResult::Done)
        };
        let (ended, stopped) = tokio::join!(running, stopping);
        stopped?;
        equal(step, &ProcessEnd::Stopped, &called(step, ended)?)?;
        self.leaves_nothing().await
    }

    async fn leaves_nothing(&self) -> ConformanceResult {
        let deadline = Instant::now() + LIMIT;
        while self.status(PROBE).await?.load_state != LoadState::NotFound {
            if Instant::now() >= deadline {
                return Err(unlike("a command that ended", "no unit", &PROBE));
            }
            sleep(Duration::from_millis(20)).await;
        }
        match self.manager.stop(PROBE, LIMIT).await {
            Err(SystemdError::NoSuchUnit(_)) => Ok(()),
            other => Err(unlike("stop of a command that ended", "NoSuchUnit", &other)),
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConformanceError> {
    let step = "what a command says";
    let done = tokio::time::timeout(LIMIT, tokio::task::spawn_blocking(work)).await;
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(unlike(step, "an answer", &error)),
        Err(error) => Err(unlike(step, "an answer", &error)),
    }
}

/// The next output, up to 64 bytes.
fn some(from: &mut File) -> String {
    let mut buffer = [0; 64];
    let length = from.read(&mut buffer).unwrap_or(0);
    let piece = buffer.get(..length).unwrap_or_default();
    String::from_utf8_lossy(piece).into_owned()
}

/// Writes a line and reads both streams to their end.
fn talk(mut ends: CallerStreams) -> io::Result<(String, String)> {
    ends.stdin.write_all(b"said\n")?;
    drop(ends.stdin);
    let (mut out, mut err) = (String::new(), String::new());
    ends.stdout.read_to_string(&mut out)?;
    ends.stderr.read_to_string(&mut err)?;
    Ok((out, err))
}
