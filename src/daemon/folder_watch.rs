//! Follows a folder whose files are replaced by rename.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path, time::Duration};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::{io::AsyncReadExt, net::unix::pipe};
use tokio_util::sync::CancellationToken;

/// Changes within this time are read together.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Interval of the reads while the folder can't be watched.
const WITHOUT_WATCH: Duration = Duration::from_secs(2);

/// Calls `refresh` whenever a file of the folder was written or replaced, until cancelled. The
/// folder may come later, and may be replaced.
pub async fn follow(folder: &Path, refresh: impl Fn(), cancel: CancellationToken) {
    while !cancel.is_cancelled() {
        if let Err(error) = watch(folder, &refresh, &cancel).await {
            tracing::debug!(folder = %folder.display(), "can't watch: {error}");
        }
        refresh();
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(WITHOUT_WATCH) => {}
        }
    }
}

async fn watch(folder: &Path, refresh: &impl Fn(), cancel: &CancellationToken) -> io::Result<()> {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(
        &watch,
        folder,
        WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR,
    )?;
    let watched = fs::metadata(folder)?.ino();
    // Changes from before the watch was in place.
    refresh();
    // The inotify descriptor is readable like a pipe. The events' content is not needed, since all
    // files are checked.
    let mut events = pipe::Receiver::from_owned_fd_unchecked(watch)?;
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            read = events.read(&mut buffer) => read?,
        };
        tokio::time::sleep(DEBOUNCE).await;
        while events.try_read(&mut buffer).is_ok() {}
        refresh();
        if fs::metadata(folder)?.ino() != watched {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
    }
}
