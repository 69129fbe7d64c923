//! Names and labels.

use super::{CheckComplaint, CheckResult, name_error, value_error};
use crate::{
    diagnostic::{Class, quote},
    suggest::nearest,
};
use kat_types::resource::{
    name::{NameError, check_label, check_namespace},
    secret::check_key,
    security::SECURITY_WORDS,
};

fn named(result: Result<(), NameError>, text: &str) -> CheckResult {
    result.map_err(|error| {
        let mut complaint = name_error(match error {
            NameError::NotALabel(_) => NameError::NotALabel(quote(text)).to_string(),
            NameError::TooLong(_, length) => NameError::TooLong(quote(text), length).to_string(),
            other => other.to_string(),
        });
        let better: String = text
            .to_lowercase()
            .chars()
            .map(|letter| match letter {
                '_' | '.' | ' ' | '/' => '-',
                other => other,
            })
            .collect();
        let better = better.trim_matches('-');
        if better != text && check_label(better).is_ok() {
            complaint = complaint.hint(format!("`{better}` would be accepted"));
        }
        complaint
    })
}

/// A DNS-1123 label of at most 40 characters.
pub(crate) fn label(text: &str) -> CheckResult {
    named(check_label(text), text)
}

/// The name of a workload, with its namespace before a slash if that is another one.
pub(crate) fn workload_reference(text: &str) -> CheckResult {
    match text.split_once('/') {
        Some((namespace, name)) => {
            named(check_namespace(namespace), text)?;
            named(check_label(name), text)
        }
        None => label(text),
    }
}

/// The name of a namespace.
pub(crate) fn namespace(text: &str) -> CheckResult {
    named(check_namespace(text), text)
}

/// The name of a namespace, or `*` for all of them.
pub(crate) fn namespace_or_all(text: &str) -> CheckResult {
    if text == "*" {
        return Ok(());
    }
    namespace(text)
}

/// What of its machine a container may ask.
pub(crate) fn machine_access(text: &str) -> CheckResult {
    const WORDS: [&str; 2] = ["api", "metadata"];
    if WORDS.contains(&text) {
        return Ok(());
    }
    let complaint = value_error(format!(
        "found `{}`, expected one of {}",
        quote(text),
        WORDS.join(", ")
    ));
    Err(match nearest(text, WORDS) {
        Some(meant) => complaint.hint(format!("did you mean `{meant}`?")),
        None => complaint,
    })
}

/// The name of a header (RFC 9110, 5.1).
pub(crate) fn header(text: &str) -> CheckResult {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !text.is_empty() && text.len() <= 128 && text.bytes().all(token) {
        return Ok(());
    }
    Err(name_error(format!(
        "`{}` is not the name of a header such as `X-Frame-Options`",
        quote(text)
    )))
}

/// Headers by which a message is framed or its connection is kept, and the host by which a request was
/// routed: the ingress decides about them alone. `kat-ingress` refuses a route that changes one of them
/// (`ParsedChanges`), and then answers its path with an error, so none may be missing here.
const FRAMING: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The name of a header that a route may set or remove: those by which the ingress says who the caller
/// is are its own, in either direction. Programs that read headers as variables take `_` for `-`.
pub(crate) fn changed_header(text: &str) -> CheckResult {
    header(text)?;
    let lower = text.to_ascii_lowercase();
    if FRAMING.contains(&lower.as_str()) {
        return Err(name_error(format!(
            "`{}` belongs to the connection, and can't be changed",
            quote(text)
        )));
    }
    let dashed = lower.replace('_', "-");
    let is_own = ["forwarded", "x-real-ip"].contains(&dashed.as_str());
    if is_own || dashed.starts_with("x-forwarded-") {
        return Err(name_error(format!(
            "`{}` says who the caller is, and the ingress sets it itself",
            quote(text)
        )));
    }
    Ok(())
}

/// The name of a network interface.
pub(crate) fn interface(text: &str) -> CheckResult {
    let clean = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    let reserved = [".", ".."].contains(&text);
    if !text.is_empty() && text.len() <= 15 && text.bytes().all(clean) && !reserved {
        return Ok(());
    }
    Err(name_error(format!(
        "`{}` is not the name of an interface such as `eth0`, or `auto`",
        quote(text)
    )))
}

/// The name of a port: a label with a letter, so that it is not taken for a number.
pub(crate) fn port_name(text: &str) -> CheckResult {
    label(text)?;
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(name_error(format!(
        "`{text}` has no letter, which the name of a port needs"
    )))
}

/// The name of an environment variable: letters, digits and `_`, not a digit first.
pub(crate) fn variable(text: &str) -> CheckResult {
    let mut bytes = text.bytes();
    let first = bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if first && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && text.len() <= 255
    {
        return Ok(());
    }
    // Somebody may have written `NAME=value` here, so the value is not shown.
    let shown = text.split('=').next().unwrap_or_default();
    Err(name_error(format!(
        "`{}` is not the name of a variable: letters, digits and `_`, not a digit first, at most 255",
        quote(shown)
    )))
}

/// Letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, at most 63.
fn label_part(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.bytes().next())
        && edge(text.bytes().next_back())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// The key of a label, as Kubernetes has it: `[dns-name/]name`.
pub(crate) fn label_key(text: &str) -> CheckResult {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if label_part(name) && prefix.is_none_or(is_domain) {
        return Ok(());
    }
    Err(name_error(format!(
        "`{}` is not the key of a label: `name` or `dns-name/name`, the name of at most 63 letters, digits, `-`, `_` and `.`",
        quote(text)
    )))
}

/// The value of a label: empty, or like its name.
pub(crate) fn label_value(text: &str) -> CheckResult {
    if text.is_empty() || label_part(text) {
        return Ok(());
    }
    Err(value_error(format!(
        "`{}` is not the value of a label: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
        quote(text)
    )))
}

/// Lower-case DNS labels with dots between them, at most 253 characters.
pub(super) fn is_domain(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(part)
}

/// A domain, such as the cluster's.
pub(crate) fn domain(text: &str) -> CheckResult {
    // Longest name in the domain: `<instance>.<workload>.<namespace>.`, at most 46 + 40 + 40 + 3.
    if is_domain(text) && text.len() <= 120 {
        return Ok(());
    }
    let complaint = name_error(format!(
        "`{}` is not a domain of at most 120 lower-case letters, digits, `-` and `.`",
        quote(text)
    ));
    Err(lower_case(text, complaint, is_domain))
}

/// A host name of an ingress, with or without a leading `*.`.
pub(crate) fn host(text: &str) -> CheckResult {
    if is_domain(text.strip_prefix("*.").unwrap_or(text)) {
        return Ok(());
    }
    let complaint = name_error(format!(
        "`{}` is not a host name such as `web.example.org` or `*.example.org`",
        quote(text)
    ));
    Err(lower_case(text, complaint, is_domain))
}

/// A host name of an ingress without `*`.
pub(crate) fn exact_host(text: &str) -> CheckResult {
    host(text)?;
    if text.starts_with("*.") {
        return Err(name_error(format!(
            "`{}` stands for many hosts, expected one such as `www.example.org`",
            quote(text)
        )));
    }
    Ok(())
}

fn lower_case(text: &str, complaint: CheckComplaint, good: fn(&str) -> bool) -> CheckComplaint {
    let lower = text.to_lowercase();
    if lower != text && good(lower.strip_prefix("*.").unwrap_or(&lower)) {
        return complaint.hint(format!("write it in lower case: `{lower}`"));
    }
    complaint
}

/// The name of a group of the machine.
pub(crate) fn group(text: &str) -> CheckResult {
    if is_login(text) {
        return Ok(());
    }
    Err(name_error(format!(
        "`{}` is not the name of a group",
        quote(text)
    )))
}

/// A name of `/etc/passwd` or `/etc/group`.
pub(super) fn is_login(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && text.len() <= 32
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Keys of a quadlet's `[Container]` that may be passed through (podman-systemd.unit(5)): those
/// that do not change what KAT sets itself or relies on, such as the network, the image, mounts and
/// names.
const QUADLET_KEYS: [&str; 15] = [
    "AddHost",
    "Mask",
    "NoNewPrivileges",
    "PidsLimit",
    "ReadOnlyTmpfs",
    "SeccompProfile",
    "SecurityLabelDisable",
    "SecurityLabelFileType",
    "SecurityLabelLevel",
    "SecurityLabelNested",
    "SecurityLabelType",
    "Sysctl",
    "Timezone",
    "Ulimit",
    "Unmask",
];

/// A key of a quadlet that may be passed through.
pub(crate) fn quadlet_key(text: &str) -> CheckResult {
    if QUADLET_KEYS.contains(&text) {
        return Ok(());
    }
    let complaint = name_error(format!(
        "`{}` is not a key of a quadlet that is passed through; these are: {}",
        quote(text),
        QUADLET_KEYS.join(", ")
    ));
    Err(match nearest(text, QUADLET_KEYS) {
        Some(meant) => complaint.hint(format!("did you mean `{meant}`?")),
        None => complaint,
    })
}

/// A key of a secret.
pub(crate) fn secret_key(text: &str) -> CheckResult {
    check_key(text).map_err(|_| {
        name_error(format!(
            "`{}` is not the key of a secret: at most 128 letters, digits, `-`, `_` and `.`, with no `.` at its start and no `..`",
            quote(text)
        ))
    })
}

/// Linux capabilities, without `CAP_` (capabilities(7)).
const CAPABILITIES: [&str; 41] = [
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// A capability by its name.
pub(crate) fn capability(text: &str) -> CheckResult {
    if CAPABILITIES.contains(&text) {
        return Ok(());
    }
    let complaint = CheckComplaint {
        class: Class::Range,
        message: format!(
            "`{}` is not a capability such as `NET_RAW` (capabilities(7), without `CAP_`)",
            quote(text)
        ),
        hint: None,
    };
    let upper = text.to_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    Err(match nearest(bare, CAPABILITIES) {
        Some(meant) => complaint.hint(format!("did you mean `{meant}`?")),
        None if bare == "ALL" => complaint.hint("name the capabilities that are needed"),
        None => complaint,
    })
}

/// A word of the machine owner's permissions for containers, or a capability.
pub(crate) fn security_word(text: &str) -> CheckResult {
    if SECURITY_WORDS.contains(&text) || CAPABILITIES.contains(&text) {
        return Ok(());
    }
    let complaint = value_error(format!(
        "`{}` is neither one of {} nor a capability such as `SYS_ADMIN`",
        quote(text),
        SECURITY_WORDS.join(", ")
    ));
    let known = SECURITY_WORDS.into_iter().chain(CAPABILITIES);
    Err(match nearest(text, known) {
        Some(meant) => complaint.hint(format!("did you mean `{meant}`?")),
        None => complaint,
    })
}

/// A capability, or `ALL`.
pub(crate) fn capability_or_all(text: &str) -> CheckResult {
    if text == "ALL" {
        return Ok(());
    }
    capability(text)
}
