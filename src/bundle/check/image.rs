//! References of images (the OCI distribution specification, and Docker's reference grammar).

use super::{CheckComplaint, CheckResult, not};

/// An image: `[host[:port]/]path[:tag][@sha256:digest]`.
pub(crate) fn image(text: &str) -> CheckResult {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    let slash = rest.rfind('/').map_or(0, |index| index + 1);
    let last = rest.get(slash..).unwrap_or_default();
    let (name, tag) = match last.split_once(':') {
        Some((last, tag)) => (
            rest.get(..slash + last.len()).unwrap_or_default(),
            Some(tag),
        ),
        None => (rest, None),
    };
    let fits = text.len() <= 512
        && is_repository(name)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    if fits {
        return Ok(());
    }
    let complaint = not(
        text,
        "an image such as `registry.example/web:1` or `registry.example/web@sha256:...`",
    );
    Err(explain(text, name, tag, complaint))
}

fn explain(text: &str, name: &str, tag: Option<&str>, complaint: CheckComplaint) -> CheckComplaint {
    for scheme in ["docker://", "https://", "http://"] {
        if text.starts_with(scheme) {
            return complaint.hint(format!("leave `{scheme}` out"));
        }
    }
    if name.chars().any(|letter| letter.is_ascii_uppercase()) && is_repository(&name.to_lowercase())
    {
        return complaint.hint("write the name in lower case");
    }
    match tag {
        Some("") => complaint.hint("write a tag after `:`, or leave `:` out"),
        _ => complaint,
    }
}

/// A repository without a tag or digest: `[host[:port]/]path`.
pub(crate) fn repository(text: &str) -> CheckResult {
    if text.len() <= 512 && is_repository(text) {
        return Ok(());
    }
    Err(not(
        text,
        "a repository such as `registry.example/cache/web`, without a tag",
    ))
}

/// A registry, or a mirror of one: `host[:port][/path]`.
pub(crate) fn registry(text: &str) -> CheckResult {
    let (host, path) = match text.split_once('/') {
        Some((host, path)) => (host, Some(path)),
        None => (text, None),
    };
    let path_fits = path.is_none_or(|path| path.split('/').all(is_component));
    if text.len() <= 255 && is_host(host) && path_fits {
        return Ok(());
    }
    Err(not(
        text,
        "a registry such as `registry.example` or `mirror.lab:5000/hub`",
    ))
}

fn is_repository(name: &str) -> bool {
    let (host, path) = match name.split_once('/') {
        Some((first, rest)) if is_host(first) => (Some(first), rest),
        _ => (None, name),
    };
    host.is_none_or(|host| host.len() <= 255)
        && path.len() <= 255
        && path.split('/').all(is_component)
}

/// Whether the first part of a name is a host: it has a dot or a port, or is `localhost`.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let port_fits = port.is_none_or(|port| {
        port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let host_fits = host.split('.').all(|part| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    });
    port_fits && host_fits && (port.is_some() || host.contains('.') || host == "localhost")
}

/// Lower-case letters and digits, with `.`, `_`, `__` or dashes between them.
fn is_component(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edges =
        text.bytes().next().is_some_and(letter) && text.bytes().next_back().is_some_and(letter);
    edges
        && text
            .bytes()
            .all(|byte| letter(byte) || matches!(byte, b'.' | b'_' | b'-'))
        && !["..", "._", "_.", "___", ".-", "-.", "_-", "-_"]
            .iter()
            .any(|pair| text.contains(pair))
}

fn is_tag(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hash| {
        hash.len() == 64
            && hash
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

/// `system/architecture`, or with a variant.
pub(crate) fn platform(text: &str) -> CheckResult {
    let part = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    if (2..=3).contains(&text.split('/').count()) && text.len() <= 64 && text.split('/').all(part) {
        return Ok(());
    }
    Err(not(text, "a platform such as `linux/arm64`"))
}

/// The name of a stage of a build.
pub(crate) fn stage(text: &str) -> CheckResult {
    let fits = text.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && text.len() <= 128
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    if fits {
        return Ok(());
    }
    Err(not(text, "the name of a stage"))
}
