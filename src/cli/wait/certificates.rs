//! Waits until the certificates of a workload's routes are there.

use std::time::Duration;

use tokio::time::Instant;

use super::AwaitedWorkload;
use crate::{CliSession, errors::CliError, output::one_line, time};
use kat_types::{api::RouteItem, reason::Reason};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until no certificate of the workload's routes is being ordered or issued. A route that waits for
/// its user, such as for a secret, is not waited for.
///
/// Exits with 5 once `timeout` has passed since `started`.
pub(crate) async fn until_certificates(
    session: &CliSession<'_>,
    target: &AwaitedWorkload,
    started: Instant,
    timeout: Duration,
) -> Result<(), CliError> {
    let deadline = started + timeout;
    let mut said = String::new();
    loop {
        let routes = session.client.routes(Some(&target.namespace)).await;
        let is_late = Instant::now() >= deadline;
        match routes {
            Ok(routes) => {
                let mut own = routes.items.into_iter();
                let Some(route) =
                    own.find(|route| route.spec.workload == target.name && waits(route))
                else {
                    return Ok(());
                };
                let message = one_line(&route.status.message);
                if is_late {
                    let spent = time::rounded(started.elapsed().as_secs());
                    return Err(CliError::deadline(format!(
                        "route {} has no certificate after {spent}: {message}",
                        one_line(&route.metadata.name)
                    ))
                    .hinted(format!("katcall why route {}", one_line(&route.spec.host))));
                }
                if said != message {
                    session.console.note(&message);
                    said = message;
                }
            }
            // A leader of a version without routes.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if is_late => return Err(error.into()),
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether the cluster itself gets the certificate.
fn waits(route: &RouteItem) -> bool {
    let reason = Reason::from_word(&route.status.reason);
    matches!(
        reason,
        Some(
            Reason::CertificatePending
                | Reason::CertificateFailed
                | Reason::CertificateLimitReached
        )
    )
}
