//! The host ends of the containers' network links, which `kat-net` makes.

use std::path::Path;

use kat_network::containers::attach::host_link_name;
use kat_types::assignment::Assignment;

/// Where the kernel shows the machine's links.
const LINKS: &str = "sys/class/net";

/// Whether the link of an instance is missing; false where an instance has no link of its own, and
/// where links can't be listed.
pub(crate) fn is_missing(root: &Path, assignment: &Assignment) -> bool {
    if assignment.container.host_network {
        return false;
    }
    let links = root.join(LINKS);
    let link = links.join(host_link_name(&assignment.instance));
    links.is_dir() && std::fs::symlink_metadata(link).is_err()
}
