//! Notices a `kat-net` that runs and does not answer, before its watchdog restarts it after 30 s.
//!
//! The container hook's socket is asked. `kat-net` refuses a caller that owns no instance, and any
//! refusal is an answer. A unit that does not run is not asked: a connection would start it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use kat_systemd::{ActiveState, UnitManager};

/// The unit of `kat-net`.
pub(crate) const UNIT: &str = "kat-net.service";
/// Pause between two questions.
const INTERVAL: Duration = Duration::from_secs(6);
/// Longest wait for an answer. It is longer than `kat-net` makes unknown callers wait, and than a
/// restart takes.
const PATIENCE: Duration = Duration::from_secs(8);
/// Pause after a connection that failed or ended, as during a restart.
const RETRY: Duration = Duration::from_millis(200);

/// Asks `kat-net` again and again whether it answers.
pub(crate) struct KatNetProbe {
    socket: PathBuf,
    system: Arc<dyn UnitManager>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// When the first question without an answer was asked.
    silent: watch::Sender<Option<Timestamp>>,
    interval: Duration,
    patience: Duration,
}

impl KatNetProbe {
    /// A probe that sends to `silent` since when `kat-net` does not answer.
    pub(crate) fn new(
        socket: &Path,
        system: Arc<dyn UnitManager>,
        clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
        silent: watch::Sender<Option<Timestamp>>,
    ) -> Self {
        Self {
            socket: socket.to_owned(),
            system,
            clock,
            silent,
            interval: INTERVAL,
            patience: PATIENCE,
        }
    }

    /// Asks until `cancel`.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.keep_asking()).await;
    }

    async fn keep_asking(&self) {
        loop {
            let asked = (self.clock)();
            let is_silent = self.is_silent().await;
            self.note(asked, is_silent);
            sleep(self.interval).await;
        }
    }

    async fn is_silent(&self) -> bool {
        self.is_running().await && !self.answers().await && self.is_running().await
    }

    async fn is_running(&self) -> bool {
        let state = self.system.active_state(UNIT).await;
        state.is_ok_and(|state| state == ActiveState::Active)
    }

    async fn answers(&self) -> bool {
        let answered = async {
            while ask(&self.socket).await.is_err() {
                sleep(RETRY).await;
                if !self.is_running().await {
                    return;
                }
            }
        };
        timeout(self.patience, answered).await.is_ok()
    }

    fn note(&self, asked: Timestamp, is_silent: bool) {
        self.silent.send_if_modified(|silent| {
            let present = is_silent.then(|| silent.unwrap_or(asked));
            match (*silent, present) {
                (None, Some(since)) => tracing::error!("{}", silence_text(since)),
                (Some(_), None) => tracing::info!("kat-net answers again, or does not run"),
                _ => {}
            }
            std::mem::replace(silent, present) != present
        });
    }
}

/// Such as `kat-net.service runs and has not answered since 2026-11-22 03:40:12 UTC`.
pub(crate) fn silence_text(since: Timestamp) -> String {
    let since = since.strftime("%Y-%m-%d %H:%M:%S UTC");
    format!("{UNIT} runs and has not answered since {since}")
}

/// Sends an empty request, and reads the first byte of the answer.
async fn ask(socket: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    // A refusal may come before the request was read, and the connection end with it.
    let _ = stream.write_all(b"\n").await;
    stream.read_exact(&mut [0]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;
    use kat_testing::systemd::fake::{FakeManager, UnitBehaviour};

    const LIMIT: Duration = Duration::from_secs(10);

    /// Refuses every caller, as `kat-net` does, until it is dropped.
    async fn refuse(listener: &UnixListener) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(b"{\"error\":\"no\"}\n").await;
        }
    }

    #[tokio::test]
    async fn a_kat_net_that_runs_and_does_not_answer_is_silent_until_it_answers_or_ends() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let system = Arc::new(FakeManager::new("system"));
        system.define(UNIT, UnitBehaviour::default());
        system.start(UNIT, LIMIT).await.unwrap();
        let now: Timestamp = "2026-11-22T03:40:12Z".parse().unwrap();
        let (silent, mut heard) = watch::channel(None);
        let manager: Arc<dyn UnitManager> = Arc::<FakeManager>::clone(&system);
        let mut probe = KatNetProbe::new(&socket, manager, Arc::new(move || now), silent);
        (probe.interval, probe.patience) = (Duration::from_millis(10), Duration::from_millis(500));
        let cancel = CancellationToken::new();
        let probing = tokio::spawn(probe.run(cancel.clone()));

        // It answers, and then hangs: the socket still takes connections.
        let _ = timeout(Duration::from_secs(1), refuse(&listener)).await;
        assert_eq!(*heard.borrow(), None);
        let silence = timeout(LIMIT, heard.wait_for(Option::is_some)).await;
        assert_eq!(*silence.unwrap().unwrap(), Some(now));

        let answered = async {
            tokio::select! {
                () = refuse(&listener) => {}
                answered = heard.wait_for(Option::is_none) => drop(answered.unwrap()),
            }
        };
        timeout(LIMIT, answered).await.unwrap();

        let silence = timeout(LIMIT, heard.wait_for(Option::is_some)).await;
        assert!(silence.unwrap().is_ok());
        system.exits(UNIT, 1);
        let ended = timeout(LIMIT, heard.wait_for(Option::is_none)).await;
        assert!(ended.unwrap().is_ok());
        cancel.cancel();
        probing.await.unwrap();
    }

    #[test]
    fn the_text_names_the_service_and_the_time() {
        assert_eq!(
            silence_text("2026-11-22T03:40:12Z".parse().unwrap()),
            "kat-net.service runs and has not answered since 2026-11-22 03:40:12 UTC"
        );
    }
}
