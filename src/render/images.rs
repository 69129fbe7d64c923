//! The quadlets that pull images.

use std::path::PathBuf;

use serde::Serialize;

use super::{RenderError, RenderSettings, Renderer, UnitFile, UnitFileKind};
use kat_types::{
    assignment::Assignment, encoding::digest::sha256_prefix_hex, resource::ImagePullPolicy,
};

/// Values of the template `image.image`.
#[derive(Debug, Serialize)]
struct ImageValues<'a> {
    namespace: &'a str,
    workload: &'a str,
    image: String,
    always: bool,
    pull_timeout: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth_file: Option<PathBuf>,
}

impl Renderer {
    /// The image quadlets of all containers of an instance, without duplicates.
    ///
    /// # Errors
    /// As [`Self::image`].
    pub fn images(
        &self,
        assignment: &Assignment,
        settings: &RenderSettings,
        has_logins: bool,
    ) -> Result<Vec<UnitFile>, RenderError> {
        let mut files: Vec<UnitFile> = Vec::new();
        for one in assignment.each() {
            let file = self.image(&one, settings, has_logins)?;
            let is_new = |file: &UnitFile| files.iter().all(|known| known.name != file.name);
            files.extend(file.filter(is_new));
        }
        Ok(files)
    }

    /// The image quadlet of an instance's main image; `None` when it is never pulled.
    ///
    /// Instances of one user with the same image share the file. Its service may be started before
    /// each first start: it pulls only a missing image, unless the policy is Always. The
    /// `.container` does not depend on it, because a pull within a start would run into the start's
    /// timeout. With `has_logins` the quadlet names the file with registry credentials.
    pub fn image(
        &self,
        assignment: &Assignment,
        settings: &RenderSettings,
        has_logins: bool,
    ) -> Result<Option<UnitFile>, RenderError> {
        let always = match pull_policy(assignment) {
            ImagePullPolicy::Never => return Ok(None),
            ImagePullPolicy::Always => true,
            ImagePullPolicy::IfNotPresent => false,
        };
        let image = image_reference(assignment)?;
        let values = ImageValues {
            namespace: &assignment.namespace,
            workload: &assignment.workload,
            image: image.clone(),
            always,
            pull_timeout: settings.pull_seconds,
            auth_file: has_logins.then(|| settings.auth_file(assignment.user.uid)),
        };
        Ok(Some(UnitFile {
            name: image_file_name(assignment.user.uid, &image, always),
            text: self.render("image.image", &values)?,
            kind: UnitFileKind::Quadlet,
        }))
    }
}

/// The pull policy: the written one, otherwise Always for `:latest` and no tag, otherwise
/// IfNotPresent.
pub fn pull_policy(assignment: &Assignment) -> ImagePullPolicy {
    assignment.container.image_pull_policy.unwrap_or_else(|| {
        let (name, digest) = match assignment.image.split_once('@') {
            Some((name, _)) => (name, true),
            None => (assignment.image.as_str(), false),
        };
        if !digest && (!tagged(name) || name.ends_with(":latest")) {
            ImagePullPolicy::Always
        } else {
            ImagePullPolicy::IfNotPresent
        }
    })
}

/// Whether the last part of a name has a tag; an earlier colon belongs to a port.
fn tagged(name: &str) -> bool {
    name.rsplit('/')
        .next()
        .is_some_and(|last| last.contains(':'))
}

/// Checks the reference for use in a quadlet: there names that end in `.image` or `.build` refer to
/// other quadlets (podman-systemd.unit(5)), and a leading dash would be an option of podman.
pub(super) fn image_reference(assignment: &Assignment) -> Result<String, RenderError> {
    let image = &assignment.image;
    let fail = |reason| RenderError::Image {
        instance: assignment.instance.clone(),
        image: image.clone(),
        reason,
    };
    if image.is_empty() || image.starts_with('-') || image.contains(char::is_whitespace) {
        return Err(fail("it is not a reference"));
    }
    if !image.ends_with(".image") && !image.ends_with(".build") {
        return Ok(image.clone());
    }
    if tagged(image) {
        return Err(fail(
            "its tag ends in `.image` or `.build`, which names another quadlet",
        ));
    }
    Ok(format!("{image}:latest"))
}

/// The name has the uid because the agent copies units of all users of a machine to one folder, where
/// each user's manager can read only the copies of its user.
fn image_file_name(uid: u32, image: &str, always: bool) -> String {
    let hash = sha256_prefix_hex(image.as_bytes(), 5);
    let suffix = if always { "-always" } else { "" };
    format!("kat-image-{uid}-{hash}{suffix}.image")
}
