//! The address for messages that the server has for the account (RFC 8555, 7.3.2). Another one in the
//! settings is sent when no order has anything to ask, and holds up none.

use jiff::{SignedDuration, Timestamp};

use super::{
    super::certificates::{CertificateStep, IssuingError, put},
    AcmeAccount, AcmeFailureKind, AcmeOrders, AcmeQuestion, AcmeReply, AcmeRequest, AcmeStep, Need,
    OrderView, later,
    requests::LONGEST_PAUSE,
};
use kat_types::store::{
    acme::{AcmeAccountRecord, server_name},
    keys,
    transaction::Compare,
};

/// Pause after an answer that is none to the question.
const UNEXPECTED_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// An address that the server did not take.
#[derive(Debug, Clone)]
pub(super) struct FailedContact {
    email: Option<String>,
    failures: u32,
    next: Timestamp,
}

impl AcmeOrders {
    /// The question that gives the server the address of the settings; `None` if it has that one, or there
    /// is no account.
    pub(super) fn contact_need(&self, view: &OrderView<'_>) -> Result<Option<Need>, IssuingError> {
        let Some((_, stored)) = view.stored_account() else {
            return Ok(None);
        };
        let email = view.settings.email.clone();
        let is_known = stored.value.email == email.as_deref().unwrap_or_default();
        if is_known || stored.value.url.is_empty() || !view.settings.agree_to_terms {
            return Ok(None);
        }
        let failed = self.contact.as_ref().filter(|failed| failed.email == email);
        if let Some(FailedContact { next, .. }) = failed
            && view.now < *next
            && next.duration_since(view.now) <= LONGEST_PAUSE
        {
            return Ok(Some(Need::Until(*next)));
        }
        let question = AcmeQuestion {
            directory: view.directory.to_owned(),
            host: String::new(),
            request: AcmeRequest::Contact {
                account: view.known_account()?,
                email,
            },
        };
        Ok(Some(Need::Step(Box::new(AcmeStep::Ask(question)))))
    }

    /// What follows from the server's answer.
    pub(super) fn contact_answered(
        &mut self,
        view: &OrderView<'_>,
        account: &AcmeAccount,
        email: Option<&str>,
        reply: &AcmeReply,
    ) -> Result<Option<CertificateStep>, IssuingError> {
        let found = view.stored_account();
        let Some((id, stored)) = found.filter(|(_, stored)| stored.value.url == account.url) else {
            return Ok(None);
        };
        let before = AcmeAccountRecord::clone(&stored.value);
        let record = match reply {
            AcmeReply::ContactChanged => AcmeAccountRecord {
                email: email.unwrap_or_default().to_owned(),
                ..before
            },
            // The next order registers it again, with the address.
            AcmeReply::Failed(failure) if failure.kind == AcmeFailureKind::NoAccount => {
                AcmeAccountRecord {
                    url: String::new(),
                    ..before
                }
            }
            other => {
                let same = self.contact.as_ref();
                let same = same.filter(|failed| failed.email.as_deref() == email);
                let failures = same.map_or(0, |failed| failed.failures);
                let pause = match other {
                    AcmeReply::Failed(failure) => failure.pause(failures, false),
                    _ => UNEXPECTED_PAUSE,
                };
                self.contact = Some(FailedContact {
                    email: email.map(str::to_owned),
                    failures: failures.saturating_add(1),
                    next: later(view.now, pause),
                });
                return Ok(None);
            }
        };
        self.contact = None;
        let key = keys::acme_account(&id);
        Ok(Some(CertificateStep {
            what: format!(
                "the address of the account at {}",
                server_name(view.directory)
            ),
            conditions: vec![Compare::ModRevision(key.clone(), stored.revision)],
            operations: vec![put(key, &record)?],
        }))
    }
}
