use std::{
    fs::File,
    io::Write,
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    pty::openpty,
};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// The result of a question on a terminal of its own.
struct Answered {
    line: Result<String, String>,
    /// Everything that the terminal echoed.
    shown: String,
    /// Whether the terminal's settings are those from before the question.
    restored: bool,
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Types `keys` as soon as the question appears.
fn answer(keys: &[u8], typing: EchoMode, change: impl Fn(&mut Termios)) -> Answered {
    let pty = openpty(None, None).unwrap();
    let (mut hands, terminal): (File, OwnedFd) = (pty.master.into(), pty.slave);
    let mut before = tcgetattr(&terminal).unwrap();
    change(&mut before);
    tcsetattr(&terminal, OptionalActions::Now, &before).unwrap();
    // The settings have no equality, but print all of themselves.
    let settings = || format!("{:?}", tcgetattr(&terminal).unwrap());
    let before = settings();
    let given = File::from(terminal.try_clone().unwrap());
    let asked = thread::spawn(move || {
        ask(&given, "a question: ", typing).map_err(|error| error.to_string())
    });
    let flags = || tcgetattr(&terminal).unwrap().local_modes;
    wait_until("nothing was asked", || !flags().contains(LocalModes::ISIG));
    hands.write_all(keys).unwrap();
    wait_until("the question waits on", || asked.is_finished());
    let line = asked.join().unwrap();
    let mut shown = Vec::new();
    // Echoed text is available immediately.
    while poll(
        &mut [PollFd::new(hands.as_fd(), PollFlags::POLLIN)],
        PollTimeout::from(50_u8),
    )
    .unwrap()
        > 0
    {
        let mut piece = [0; 256];
        let length = hands.read(&mut piece).unwrap();
        shown.extend(&piece[..length]);
    }
    Answered {
        line,
        shown: String::from_utf8(shown).unwrap(),
        restored: settings() == before,
    }
}

fn as_it_is(_: &mut Termios) {}

#[test]
fn a_hidden_line_is_read_and_not_shown() {
    let typed = answer(b"kat-secret\r", EchoMode::Hidden, as_it_is);
    assert_eq!(typed.line.unwrap(), "kat-secret\n");
    assert!(!typed.shown.contains("secret"), "{:?}", typed.shown);
    assert!(typed.restored);
}

#[test]
fn what_may_be_seen_is_shown() {
    let typed = answer(b"yes\r", EchoMode::Shown, as_it_is);
    assert_eq!(typed.line.unwrap(), "yes\n");
    assert!(typed.shown.contains("yes"), "{:?}", typed.shown);
    assert!(typed.restored);
}

#[test]
fn a_line_is_mended_as_everywhere() {
    let typed = answer(b"wrong\x15kab\x7ft\n", EchoMode::Hidden, as_it_is);
    assert_eq!(typed.line.unwrap(), "kat\n");
}

#[test]
fn an_interrupt_ends_it_with_a_sentence_and_the_terminal_as_it_was() {
    for typing in [EchoMode::Hidden, EchoMode::Shown] {
        for keys in [&b"\x03"[..], b"kat-sec\x03", b"\x1c"] {
            let typed = answer(keys, typing, as_it_is);
            let said = typed.line.unwrap_err();
            assert_eq!(said, "interrupted; nothing was changed", "{keys:?}");
            assert!(typed.restored, "{keys:?}");
        }
    }
    // The interrupt key is a terminal setting, here Ctrl-X.
    let typed = answer(b"\x18", EchoMode::Hidden, |terminal| {
        terminal.special_codes[Key::VINTR] = 0x18;
    });
    assert!(typed.line.is_err() && typed.restored);
}

#[test]
fn the_end_of_the_input_is_an_empty_line() {
    let typed = answer(b"\x04", EchoMode::Hidden, as_it_is);
    assert_eq!(typed.line.unwrap(), "");
    assert!(typed.restored);
}

#[test]
fn a_terminal_that_shows_keys_as_they_come_is_asked_for_lines() {
    let raw = |terminal: &mut Termios| {
        terminal.local_modes.remove(LocalModes::ICANON);
        terminal.input_modes.remove(InputModes::ICRNL);
    };
    let typed = answer(b"kat\r", EchoMode::Hidden, raw);
    assert_eq!(typed.line.unwrap(), "kat\n");
    assert!(typed.restored);
}
