//! The client against small servers on Unix sockets and on loopback.

mod retry;
mod tls;
mod watch;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::Router;
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinHandle};

use super::{Client, ClientOptions};

/// Short timeouts and pauses, so that the tests are quick.
fn quick() -> ClientOptions {
    ClientOptions {
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(5),
        retry_for: Duration::from_secs(5),
        unreachable_for: Duration::from_millis(50),
        backoff: Duration::from_millis(5),
        backoff_limit: Duration::from_millis(20),
        watch_idle: Duration::from_secs(5),
    }
}

/// A server on a Unix socket, which ends when it is dropped.
struct Server {
    folder: TempDir,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    fn start(router: Router) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("api.sock")).unwrap();
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.unwrap();
        });
        Self { folder, task }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("api.sock")
    }

    fn client(&self) -> Client {
        Client::from_unix_socket(&self.path(), quick()).unwrap()
    }
}

#[derive(Clone, Default)]
struct Calls(Arc<AtomicUsize>);

impl Calls {
    /// The number of calls before this one.
    fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}
