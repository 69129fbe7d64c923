//! Init containers and sidecars of an instance.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::newer;
use crate::resource::OtherKind;

/// State of an init container or a sidecar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerState {
    /// The container has not started yet.
    #[default]
    Waiting,
    /// The container starts.
    Starting,
    /// The program runs.
    Running,
    /// The program has ended and is restarted.
    Restarting,
    /// The program of an init container has ended with success.
    Ended,
    /// The program has failed and is not restarted.
    Failed,
}

/// An unknown state has no effect.
impl newer::ExtensibleEnum for ContainerState {
    const NEWER: Self = Self::Waiting;
}

/// An unknown kind has no effect.
impl newer::ExtensibleEnum for OtherKind {
    const NEWER: Self = Self::Sidecar;
}

/// Status of an init container or a sidecar. The status of the main container is that of the
/// instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// Kind of the container. In an object of a newer version, an unknown kind is read as
    /// `sidecar`.
    #[serde(deserialize_with = "newer::word")]
    pub kind: OtherKind,
    /// State of the container. In an object of a newer version, an unknown state is read as
    /// `Waiting`.
    #[serde(deserialize_with = "newer::word")]
    pub state: ContainerState,
    /// Number of restarts.
    pub restarts: u32,
    /// Exit code with which the container last ended; 128 plus the signal's number if a signal
    /// ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The image: by its digest if that is known, otherwise as written in `workload.kat`.
    pub image: String,
    /// Name of the container's service in the systemd manager of the instance's user.
    pub unit: String,
}

/// The message of an instance whose init container or sidecar has an image of its own that cannot
/// be pulled: `image IMAGE of sidecar NAME: WORDS`.
pub fn other_image_message(kind: OtherKind, name: &str, image: &str, words: &str) -> String {
    format!("image {image} of {kind} {name}: {words}")
}

/// The image in an [`other_image_message`]; `None` for other messages.
pub fn other_image(message: &str) -> Option<&str> {
    let (image, rest) = message.strip_prefix("image ")?.split_once(" of ")?;
    let mut kinds = OtherKind::ALL.iter();
    let named = kinds.any(|kind| rest.starts_with(&format!("{kind} ")));
    (named && !image.contains(' ')).then_some(image)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_is_written_as_its_word_and_an_unknown_one_is_a_sidecar() {
        assert_eq!(json!(OtherKind::Init), json!("init"));
        assert_eq!(json!(OtherKind::Sidecar), json!("sidecar"));
        let read = |word: &str| {
            let status: ContainerStatus = serde_json::from_value(json!({"kind": word})).unwrap();
            status.kind
        };
        assert_eq!(read("init"), OtherKind::Init);
        assert_eq!(read("helper"), OtherKind::Sidecar);
    }

    #[test]
    fn the_image_of_a_sidecar_is_read_from_its_message() {
        let message = |kind| other_image_message(kind, "proxy", "r.lab/proxy:1", "no such image");
        for kind in OtherKind::ALL {
            assert_eq!(other_image(&message(kind)), Some("r.lab/proxy:1"));
        }
        for other in [
            "image not known",
            "manifest unknown",
            "image a b of sidecar x: y",
            "",
        ] {
            assert_eq!(other_image(other), None, "{other}");
        }
    }
}
