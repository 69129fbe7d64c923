//! Packs a file or folder as a tar stream.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use bytes::Bytes;
use tar::{Builder, HeaderMode};
use tokio::sync::mpsc;

use kat_types::encoding::frames::MOST;

/// Writes into a channel; fails when the receiver is gone.
struct PieceWriter {
    sender: mpsc::Sender<Bytes>,
    buffer: Vec<u8>,
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= MOST {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.buffer);
        if piece.is_empty() {
            return Ok(());
        }
        self.sender
            .blocking_send(piece.into())
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Packs everything at the path, under another name. Symbolic links are packed as links.
pub(crate) fn pack(path: &Path, name: &str, sender: mpsc::Sender<Bytes>) -> io::Result<()> {
    let pieces = PieceWriter {
        sender,
        buffer: Vec::new(),
    };
    let mut builder = Builder::new(pieces);
    builder.follow_symlinks(false);
    builder.mode(HeaderMode::Deterministic);
    if path.is_dir() {
        builder.append_dir_all(name, path)?;
    } else {
        builder.append_file(name, &mut File::open(path)?)?;
    }
    builder.into_inner()?.flush()
}
