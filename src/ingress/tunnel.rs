//! Connections whose bytes are passed on as they are: websockets and passed-through TLS.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes},
    time::{Instant, sleep_until},
};

/// Bytes of a buffer for each direction.
const BUFFER: usize = 16 * 1024;

/// When bytes passed last, as milliseconds since the tunnel began.
#[derive(Debug, Clone)]
struct LastActivity {
    began: Instant,
    last: Arc<AtomicU64>,
}

impl LastActivity {
    fn touch(&self) {
        let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(passed, Relaxed);
    }

    async fn idle_for(&self, limit: Duration) {
        loop {
            let until = self.began + Duration::from_millis(self.last.load(Relaxed)) + limit;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// A stream that remembers when bytes passed.
struct WatchedStream<S> {
    stream: S,
    activity: LastActivity,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.activity.touch();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if polled.is_ready() {
            self.activity.touch();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Passes bytes both ways until both ends have closed, one breaks, or nothing passes for `idle`.
/// Returns the bytes from the client and from the instance.
///
/// # Errors
/// An end broke off, or nothing passed for too long.
pub(crate) async fn tunnel<C, I>(client: C, instance: I, idle: Duration) -> io::Result<(u64, u64)>
where
    C: AsyncRead + AsyncWrite + Unpin,
    I: AsyncRead + AsyncWrite + Unpin,
{
    let activity = LastActivity {
        began: Instant::now(),
        last: Arc::default(),
    };
    let watched = activity.clone();
    let mut client = WatchedStream {
        stream: client,
        activity: activity.clone(),
    };
    let mut instance = WatchedStream {
        stream: instance,
        activity,
    };
    tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut client, &mut instance, BUFFER, BUFFER) => copied,
        () = watched.idle_for(idle) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_when_nothing_passes_and_not_before() {
        let (mut near, client) = duplex(64);
        let (instance, mut far) = duplex(64);
        let idle = Duration::from_secs(300);
        let passing = tokio::spawn(tunnel(client, instance, idle));
        for _ in 0..5 {
            tokio::time::sleep(idle - Duration::from_secs(1)).await;
            near.write_all(b"ping").await.unwrap();
            let mut read = [0; 4];
            far.read_exact(&mut read).await.unwrap();
        }
        let before = Instant::now();
        let error = passing.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(before.elapsed().as_secs(), 300);
        assert_eq!(near.read(&mut [0; 4]).await.unwrap(), 0, "closed");
    }
}
