//! The images of an instance: whether they are on the machine, and their pulls before a start.

use tokio::time::Instant;

use crate::{
    images::pull as image,
    worker::{
        context::UserContext,
        instance::{Instance, starting::begin_restart},
        running::jobs::JobKey,
        users::logins::pull_failure,
    },
};
use kat_systemd::UnitStatus;
use kat_types::{
    api::{InstancePhase, other_image_message},
    assignment::Assignment,
    reason::Reason,
    resource::ImagePullPolicy,
};

impl Instance {
    /// Whether the images of all containers are on the machine; starts a pull of a missing one.
    pub(super) fn images_ready(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> bool {
        let each = assignment.each();
        each.iter()
            .all(|only| self.image_ready(context, assignment, only, status))
    }

    /// Whether one container's image is on the machine. `only` has this container only; reports are
    /// made for the `whole` instance.
    fn image_ready(
        &mut self,
        context: &mut UserContext,
        whole: &Assignment,
        only: &Assignment,
        status: &UnitStatus,
    ) -> bool {
        if self.has_image(context, only) {
            return true;
        }
        let image = context.images.entry(only.image.clone()).or_default();
        let failure = image.failure.clone();
        let wait = image.attempts.remaining(Instant::now());
        if let Some(wait) = wait {
            context.wake_within(wait);
        }
        let sealed = self.sealed_logins.clone();
        // Without its credentials the pull would fail.
        let may_pull = sealed.is_none() && wait.is_none();
        let (reason, message) = match (sealed, failure) {
            (Some(why), _) => (Some(Reason::CredentialsUnreadable), why),
            (None, Some(words)) => {
                let (reason, message) = pull_failure(only, &words);
                (Some(reason), message)
            }
            (None, None) => (None, String::new()),
        };
        let message = of_container(whole, only, message);
        let phase = InstancePhase::Pulling;
        self.report(context, whole, status, phase, reason, message);
        if may_pull && !context.jobs.is_running(&JobKey::Pull(only.image.clone())) {
            context.begin_pull(only);
        }
        false
    }

    fn has_image(&self, context: &mut UserContext, only: &Assignment) -> bool {
        let home = context.home();
        let image = context.images.entry(only.image.clone()).or_default();
        let known = image.present || image::is_present(&home, &only.image);
        match kat_render::pull_policy(only) {
            ImagePullPolicy::Never => true,
            ImagePullPolicy::IfNotPresent => known,
            ImagePullPolicy::Always => known && self.pulled.contains(&only.image),
        }
    }

    /// Pulls the missing image of a main container that systemd keeps restarting, and restarts the
    /// unit once the image is there. False where nothing has to be done.
    pub(super) fn replace_image(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> bool {
        if !self.images_ready(context, assignment, status) {
            return true;
        }
        if !status.is_between_runs() {
            return false;
        }
        if let Some(wait) = self.start.backoff.remaining(Instant::now()) {
            context.wake_within(wait);
            return false;
        }
        // systemd's own restart delay may have grown to a minute.
        self.start.backoff.failed(Instant::now());
        begin_restart(context, assignment);
        true
    }
}

/// The message about an image; it names the container where that is not the main one's.
fn of_container(whole: &Assignment, only: &Assignment, message: String) -> String {
    if message.is_empty() || only.image == whole.image {
        return message;
    }
    let mut others = whole.others();
    match others.find(|(_, one)| one.image.as_deref() == Some(&only.image)) {
        Some((kind, one)) => {
            let name = one.name.as_deref().unwrap_or_default();
            other_image_message(kind, name, &only.image, &message)
        }
        None => message,
    }
}
