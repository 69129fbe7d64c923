//! A terminal for a command: the agent holds one end (pty(7)), systemd gives the other to the unit.

use std::{
    io,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::{
    fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, unix::AsyncFd};

use kat_types::encoding::frames::TerminalSize;

#[derive(Clone)]
pub(super) struct Terminal {
    file: Arc<AsyncFd<OwnedFd>>,
}

impl Terminal {
    /// A new terminal of this size, and the command's end of it. Processes that the agent starts
    /// inherit neither end.
    pub(super) fn open(size: TerminalSize) -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let path = ptsname(&ours, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = open(path, flags, Mode::empty())?;
        // The terminal inside the container does the line editing; this one only carries bytes.
        let mut attributes = tcgetattr(&theirs)?;
        attributes.make_raw();
        tcsetattr(&theirs, OptionalActions::Now, &attributes)?;
        fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "unsound for files that close before it does; it owns this one"
        )]
        let file = AsyncFd::new(ours)?;
        let terminal = Self {
            file: Arc::new(file),
        };
        terminal.resize(size)?;
        Ok((terminal, theirs))
    }

    pub(super) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let size = Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(tcsetwinsize(self.file.get_ref(), size)?)
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.file.poll_read_ready(context))?;
            let mut piece = [0; 4096];
            let most = buffer.remaining().min(piece.len());
            let room = piece.get_mut(..most).unwrap_or_default();
            let read = ready.try_io(|file| Ok(rustix::io::read(file.get_ref(), room)?));
            if let Ok(read) = read {
                let length = read?;
                buffer.put_slice(piece.get(..length).unwrap_or_default());
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.file.poll_write_ready(context))?;
            let written = ready.try_io(|file| Ok(rustix::io::write(file.get_ref(), bytes)?));
            if let Ok(written) = written {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write};

    use rustix::termios::tcgetwinsize;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_go_through_as_they_are_and_the_end_is_seen() {
        let size = TerminalSize {
            rows: 33,
            columns: 101,
        };
        let (mut ours, theirs) = Terminal::open(size).unwrap();
        let seen = tcgetwinsize(&theirs).unwrap();
        assert_eq!((seen.ws_row, seen.ws_col), (33, 101));
        let smaller = TerminalSize { rows: 20, ..size };
        ours.resize(smaller).unwrap();
        assert_eq!(tcgetwinsize(&theirs).unwrap().ws_row, 20);
        // Ctrl-C and line ends have no special meaning on this terminal.
        ours.write_all(b"\x03\r\n").await.unwrap();
        let mut theirs = File::from(theirs);
        let mut heard = [0; 3];
        std::io::Read::read_exact(&mut theirs, &mut heard).unwrap();
        assert_eq!(&heard, b"\x03\r\n");
        theirs.write_all(b"a\nb").unwrap();
        let mut heard = [0; 3];
        ours.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"a\nb");
        drop(theirs);
        assert!(ours.read(&mut heard).await.is_err());
    }
}
