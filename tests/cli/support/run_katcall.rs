//! Runs katcall in a home folder of its own.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::fake_api::Fake;

/// Time limit of every program.
const DEADLINE: Duration = Duration::from_secs(30);

/// katcall's home folder, and its connection to a cluster or none.
pub(crate) struct Program {
    pub(crate) home: TempDir,
    socket: Option<String>,
    variables: Vec<(&'static str, String)>,
}

impl Program {
    pub(crate) fn of(fake: &Fake) -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            socket: Some(fake.socket().display().to_string()),
            variables: Vec::new(),
        }
    }

    /// With a socket on which nothing listens.
    pub(crate) fn alone() -> Self {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("none.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        Self {
            socket: Some(socket.display().to_string()),
            home,
            variables: Vec::new(),
        }
    }

    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Writes a file into the home folder and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_katcall"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.home.path())
            .env("TERM", "xterm-256color")
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        if let Some(socket) = &self.socket {
            command.env("KAT_CONNECTION", socket);
        }
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command
    }

    /// Runs to the end. Returns exit code, stdout and stderr as one text, without the parts that
    /// differ each time.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let mut running = self.spawn(arguments);
        running.end()
    }

    /// Runs to the end with `sent` on stdin, through a pipe.
    pub(crate) fn run_piped(&self, arguments: &[&str], sent: &[u8]) -> String {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let sent = sent.to_vec();
        // katcall may end before it has read all.
        let sender = std::thread::spawn(move || drop(writer.write_all(&sent)));
        let mut command = self.command(arguments);
        command.stdin(reader);
        let text = self.spawned(command).end();
        sender.join().unwrap();
        text
    }

    /// Runs to the end with `typed` entered on its terminal.
    pub(crate) fn run_answering(&self, arguments: &[&str], typed: &str) -> String {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut terminal = std::fs::File::from(pty.master);
        terminal.write_all(typed.as_bytes()).unwrap();
        let mut command = self.command(arguments);
        command.stdin(pty.slave);
        self.spawned(command).end()
    }

    /// Starts katcall with stdout and stderr in pipes.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Running {
        self.spawned(self.command(arguments))
    }

    fn spawned(&self, mut command: Command) -> Running {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = Lines::of(child.stdout.take().unwrap());
        let stderr = Lines::of(child.stderr.take().unwrap());
        Running {
            child,
            stdout,
            stderr,
            hidden: vec![
                (self.socket.clone().unwrap_or_default(), "[SOCKET]"),
                (self.home.path().display().to_string(), "[HOME]"),
            ],
        }
    }

    /// Starts katcall with stdout on a terminal and stderr in a pipe.
    pub(crate) fn spawn_on_terminal(&self, arguments: &[&str]) -> Running {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut child = self
            .command(arguments)
            .stdout(pty.slave)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Running {
            stdout: Lines::of(std::fs::File::from(pty.master)),
            stderr: Lines::of(child.stderr.take().unwrap()),
            child,
            hidden: Vec::new(),
        }
    }

    /// Runs katcall with both streams on one terminal; returns the exit code and all output.
    pub(crate) fn run_on_terminal(&self, arguments: &[&str]) -> (i32, String) {
        on_terminal(self.command(arguments))
    }

    /// Runs katcall with both streams on one terminal of so many columns, without colours and without
    /// progress that is drawn over. Returns the exit code and what the terminal shows.
    pub(crate) fn screen(&self, arguments: &[&str], columns: usize, stdin: Stdio) -> (i32, String) {
        let mut command = self.command(arguments);
        command
            .stdin(stdin)
            .env("TERM", "dumb")
            .env("COLUMNS", columns.to_string());
        let (code, text) = on_terminal(command);
        (code, text.replace("\r\n", "\n"))
    }
}

/// Runs a command to its end with both streams on one terminal; returns the exit code and all output.
fn on_terminal(mut command: Command) -> (i32, String) {
    let pty = nix::pty::openpty(None, None).unwrap();
    let clone = || -> OwnedFd { pty.slave.try_clone().unwrap() };
    let mut child = command.stdout(clone()).stderr(clone()).spawn().unwrap();
    // The program alone has the other end of the terminal, so that its end is seen.
    drop(command);
    drop(pty.slave);
    let mut terminal = std::fs::File::from(pty.master);
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        // Reading from a terminal whose other end is closed fails.
        let _ = terminal.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = wait(&mut child);
    (status.code().unwrap_or(-1), reader.join().unwrap())
}

/// A running katcall.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: Lines,
    stderr: Lines,
    hidden: Vec<(String, &'static str)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Waits until a line of stderr contains `text`.
    pub(crate) fn stderr_says(&mut self, text: &str) {
        self.stderr.until(text);
    }

    /// Waits until a line of stdout contains `text`.
    pub(crate) fn stdout_says(&mut self, text: &str) {
        self.stdout.until(text);
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn interrupt(&self) {
        let id = i32::try_from(self.child.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), nix::sys::signal::SIGINT).unwrap();
    }

    /// Waits for katcall to exit. Returns exit code, stdout and stderr as one text.
    pub(crate) fn end(&mut self) -> String {
        let status = wait(&mut self.child);
        let code = status
            .code()
            .map_or_else(|| status.to_string(), |code| code.to_string());
        let mut text = format!("exit: {code}\n");
        for (name, stream) in [("stdout", &mut self.stdout), ("stderr", &mut self.stderr)] {
            let content = stream.rest();
            if !content.is_empty() {
                text.push_str(&format!("--- {name}\n{content}"));
            }
        }
        for (hidden, name) in &self.hidden {
            if !hidden.is_empty() {
                text = text.replace(hidden, name);
            }
        }
        text
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(started.elapsed() < DEADLINE, "katcall did not end in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A stream that is read line by line, with a deadline.
struct Lines {
    receiver: Receiver<String>,
    seen: String,
}

impl Lines {
    fn of(source: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while source
                .read_until(b'\n', &mut line)
                .is_ok_and(|count| count > 0)
            {
                let text = String::from_utf8_lossy(&line).into_owned();
                if sender.send(text).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Self {
            receiver,
            seen: String::new(),
        }
    }

    fn until(&mut self, text: &str) {
        let started = Instant::now();
        loop {
            let left = DEADLINE.saturating_sub(started.elapsed());
            match self.receiver.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push_str(&line);
                    if line.contains(text) {
                        return;
                    }
                }
                Err(error) => panic!("{error}: no line with {text:?} in:\n{}", self.seen),
            }
        }
    }

    fn rest(&mut self) -> String {
        loop {
            match self.receiver.recv_timeout(DEADLINE) {
                Ok(line) => self.seen.push_str(&line),
                Err(RecvTimeoutError::Disconnected) => return self.seen.clone(),
                Err(RecvTimeoutError::Timeout) => panic!("the stream did not end"),
            }
        }
    }
}

/// Permission bits of a file.
pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
