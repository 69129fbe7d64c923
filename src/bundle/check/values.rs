//! Paths, addresses, signals and other values.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    CheckResult,
    names::{is_domain, is_login},
    not, value_error,
};
use crate::suggest::nearest;
use kat_types::{
    resource::{DeviceMapping, PortRange},
    virtual_addresses::can_be_shared,
};

/// Maximum bytes of a program's argument or variable (MAX_ARG_STRLEN, with room for the name).
const LONGEST_ARGUMENT: usize = 131_072 - 256;

/// An argument of a program, or the value of a variable; messages never contain its text.
pub(crate) fn argument(text: &str) -> CheckResult {
    if text.contains('\0') {
        return Err(value_error(
            "found a NUL character, which no program can be given",
        ));
    }
    if text.len() > LONGEST_ARGUMENT {
        return Err(value_error(format!(
            "found {} bytes, at most {LONGEST_ARGUMENT} can be given to a program",
            text.len()
        )));
    }
    Ok(())
}

/// A normal path that begins with `/`: no `.` or `..`, no `:` and no control characters.
fn is_absolute(text: &str) -> bool {
    text.starts_with('/') && text.len() <= 4095 && is_clean(text)
}

fn is_clean(text: &str) -> bool {
    !text
        .chars()
        .any(|letter| letter.is_control() || letter == ':')
        && !text.split('/').any(|part| part == "..")
}

/// An absolute path.
pub(crate) fn absolute_path(text: &str) -> CheckResult {
    if is_absolute(text) {
        return Ok(());
    }
    let complaint = not(
        text,
        "an absolute path (without `..`, `:` and control characters)",
    );
    if !text.starts_with('/') && is_clean(text) && !text.is_empty() && !text.starts_with('~') {
        return Err(complaint.hint("begin it with `/`"));
    }
    Err(complaint)
}

/// An absolute path other than `/`.
pub(crate) fn folder_path(text: &str) -> CheckResult {
    absolute_path(text)?;
    if text.split('/').all(|part| part.is_empty() || part == ".") {
        return Err(not(text, "a path below `/`"));
    }
    Ok(())
}

/// A device node below `/dev`, optionally with its path in the container and permissions.
pub(crate) fn device(text: &str) -> CheckResult {
    if DeviceMapping::parse(text).is_some() {
        return Ok(());
    }
    Err(not(
        text,
        "a device: `/dev/NAME`, `/dev/NAME:/dev/NAME` or `/dev/NAME:/dev/NAME:rwm`, without blanks and `..`",
    ))
}

/// `/dev`, or a device or folder below it.
pub(crate) fn device_folder(text: &str) -> CheckResult {
    let inside = text.strip_prefix("/dev");
    if is_absolute(text) && inside.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return Ok(());
    }
    Err(not(text, "`/dev`, or a path below it"))
}

/// A port, or a range of ports.
pub(crate) fn port_range(text: &str) -> CheckResult {
    match PortRange::parse(text) {
        Some(_) => Ok(()),
        None => Err(not(
            text,
            "a port, or a range of ports such as `30000-32767`",
        )),
    }
}

/// A path that does not leave its folder.
pub(crate) fn relative_path(text: &str) -> CheckResult {
    if !text.is_empty() && !text.starts_with('/') && text.len() <= 4095 && is_clean(text) {
        return Ok(());
    }
    Err(not(
        text,
        "a relative path (without `..`, `:` and control characters)",
    ))
}

/// A path of a URL.
pub(crate) fn url_path(text: &str) -> CheckResult {
    if text.starts_with('/')
        && text.len() <= 2048
        && text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Ok(());
    }
    Err(not(
        text,
        "a path of a URL: it begins with `/` and has no spaces",
    ))
}

/// A path in whole segments: without query, encoded characters, empty segments, `.` and `..`.
pub(crate) fn path_prefix(text: &str) -> CheckResult {
    url_path(text)?;
    // The ingress decodes paths before it compares them, and drops what follows a `;`. It refuses a route
    // with one of these characters.
    let encoded = text.contains(|letter: char| "%?#;\\\"<>^`{|}".contains(letter));
    let inner = text.trim_start_matches('/').trim_end_matches('/');
    let segments = inner.split('/').filter(|_| !inner.is_empty());
    let mut strange = segments.filter(|segment| ["", ".", ".."].contains(segment));
    let doubled = text.starts_with("//") || text.len() > 1 && text.ends_with("//");
    if encoded || doubled || strange.next().is_some() {
        return Err(not(
            text,
            "a prefix of a path: whole segments without `.`, `..`, `?` and `#`",
        ));
    }
    Ok(())
}

/// A URL over http or https, with a host and without user, query and fragment.
pub(crate) fn web_url(text: &str) -> CheckResult {
    let rest = ["https://", "http://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    if rest.is_some_and(is_host_and_path) {
        return Ok(());
    }
    Err(not(
        text,
        "a URL such as `https://example.org` or `http://192.0.2.5:5000/path`, without user, query and fragment",
    ))
}

/// As [`web_url`], over https.
pub(crate) fn https_url(text: &str) -> CheckResult {
    if text.strip_prefix("https://").is_some_and(is_host_and_path) {
        return Ok(());
    }
    Err(not(text, "a URL that begins with `https://`"))
}

fn is_host_and_path(text: &str) -> bool {
    let (host, path) = match text.find('/') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let clean = path.bytes().all(|byte| byte.is_ascii_graphic());
    // Characters that no path of a URL has (RFC 3986, 3.3).
    let strange = path.contains(|letter: char| "?#\\\"<>^`{|}".contains(letter));
    server(host).is_ok() && clean && !strange && text.len() <= 2048
}

/// A host with or without a port: a name, an IPv4 address or an IPv6 address in brackets.
pub(crate) fn server(text: &str) -> CheckResult {
    let address = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let alone = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_domain(text),
    };
    if alone || endpoint(text).is_ok() {
        return Ok(());
    }
    Err(not(
        text,
        "a host such as `ns1.example.org`, `192.0.2.1:53` or `[2001:db8::1]`",
    ))
}

/// An address, or a range of addresses.
pub(crate) fn source_range(text: &str) -> CheckResult {
    if text.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    match text.parse::<IpNet>() {
        Ok(range) if range == range.trunc() => Ok(()),
        Ok(range) => Err(
            value_error(format!("`{range}` has bits set after its prefix"))
                .hint(format!("write `{}`", range.trunc())),
        ),
        Err(_) => Err(not(
            text,
            "an address or a range such as `192.0.2.0/24` or `2001:db8::/32`",
        )),
    }
}

/// An address with the prefix of its network, for a machine's interface.
pub(crate) fn address_of_network(text: &str) -> CheckResult {
    let expected = "an address with the prefix of its network, such as `192.0.2.9/24`";
    let Ok(network) = text.parse::<IpNet>() else {
        return Err(not(text, expected));
    };
    let address = network.addr();
    if !can_be_shared(address) {
        return Err(not(text, "an address that a machine can have"));
    }
    let is_whole = network.prefix_len() == network.max_prefix_len();
    if !is_whole && (address == network.network() || is_broadcast(&network)) {
        return Err(not(text, expected));
    }
    Ok(())
}

/// Whether it is the last address of an IPv4 network, which no machine has.
fn is_broadcast(network: &IpNet) -> bool {
    matches!(network, IpNet::V4(network) if network.addr() == network.broadcast() && network.prefix_len() < 31)
}

/// An address of mail.
pub(crate) fn email(text: &str) -> CheckResult {
    let fits = text.rsplit_once('@').is_some_and(|(user, domain)| {
        let clean = |byte: u8| byte.is_ascii_graphic() && !b"@,;<>()\"".contains(&byte);
        !user.is_empty() && user.bytes().all(clean) && domain.contains('.') && is_domain(domain)
    });
    if fits && text.len() <= 254 {
        return Ok(());
    }
    Err(not(text, "an address of mail such as `admin@example.org`"))
}

/// The value of a header: one line of visible characters, without blanks at its ends.
pub(crate) fn header_value(text: &str) -> CheckResult {
    let visible = text
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if visible && text.trim() == text && text.len() <= 4096 {
        return Ok(());
    }
    Err(value_error(
        "found something else than one line of ASCII characters without blanks at its ends",
    ))
}

/// A value of a unit's key: one line, without characters at its ends that the key would lose.
pub(crate) fn unit_value(text: &str) -> CheckResult {
    one_line(text)?;
    let lost = |letter: char| letter.is_whitespace() || matches!(letter, '"' | '\'' | '\\');
    if text.is_empty() || text.starts_with(lost) || text.ends_with(lost) {
        return Err(value_error(
            "found nothing, or a blank, quote or backslash at an end, which a unit's key would lose",
        ));
    }
    Ok(())
}

/// Names of signals (signal(7)).
const SIGNALS: [&str; 30] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
];

/// A signal that can stop a program, by its name; `SIGRTMIN+N` too.
pub(crate) fn signal(text: &str) -> CheckResult {
    let real_time = text
        .strip_prefix("SIGRTMIN+")
        .and_then(|number| number.parse::<u8>().ok())
        .is_some_and(|number| number <= 30 && !text.starts_with("SIGRTMIN++"));
    if SIGNALS.contains(&text) || real_time {
        return Ok(());
    }
    let complaint = not(text, "a signal such as `SIGTERM`");
    let upper = text.to_uppercase();
    let full = format!("SIG{}", upper.strip_prefix("SIG").unwrap_or(&upper));
    Err(match nearest(&full, SIGNALS) {
        Some(meant) => complaint.hint(format!("did you mean `{meant}`?")),
        None => complaint,
    })
}

/// `uid[:gid]` up to 65535 (a container has 65,536 ids), or names.
pub(crate) fn user(text: &str) -> CheckResult {
    let part = |part: &str| {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            return part.parse::<u16>().is_ok();
        }
        is_login(part)
    };
    let fits = match text.split_once(':') {
        Some((user, group)) => part(user) && part(group),
        None => part(text),
    };
    if fits {
        return Ok(());
    }
    Err(not(
        text,
        "a user: `uid`, `uid:gid`, `name` or `name:group`, ids at most 65535",
    ))
}

/// URL of a git repository, over https, http, ssh or git.
pub(crate) fn git_url(text: &str) -> CheckResult {
    let clean = text.bytes().all(|byte| byte.is_ascii_graphic()) && text.len() <= 2048;
    let scheme = ["https://", "http://", "ssh://", "git://"]
        .iter()
        .filter_map(|scheme| text.strip_prefix(scheme))
        .any(|rest| rest.starts_with(|letter: char| letter.is_ascii_alphanumeric()));
    let short = text.split_once('@').is_some_and(|(user, rest)| {
        is_login(user)
            && rest
                .split_once(':')
                .is_some_and(|(host, path)| is_domain(host) && !path.is_empty())
    });
    if clean && (scheme || short) {
        return Ok(());
    }
    Err(not(
        text,
        "the URL of a repository: `https://`, `http://`, `ssh://`, `git://` or `user@host:path`",
    ))
}

/// A branch or tag (git-check-ref-format(1)).
pub(crate) fn git_reference(text: &str) -> CheckResult {
    let bad =
        |letter: char| letter.is_control() || letter.is_whitespace() || "~^:?*[\\".contains(letter);
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let fits = !text.starts_with('-')
        && !text.contains(bad)
        && !text.contains("..")
        && !text.contains("@{")
        && !text.ends_with('.')
        && text != "@"
        && text.len() <= 255
        && text.split('/').all(part);
    if fits {
        return Ok(());
    }
    Err(not(text, "the name of a branch or tag"))
}

/// A commit: 7 to 64 hexadecimal digits.
pub(crate) fn commit(text: &str) -> CheckResult {
    if (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(not(text, "a commit: 7 to 64 hexadecimal digits"))
}

/// A time zone by its name in the IANA database; whether it exists is not checked.
pub(crate) fn time_zone(text: &str) -> CheckResult {
    let part = |part: &str| {
        part.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+'))
    };
    if text.len() <= 64 && text.split('/').all(part) {
        return Ok(());
    }
    Err(not(text, "a time zone such as `UTC` or `Europe/Berlin`"))
}

/// `host:port`, the host a name, an IPv4 address or an IPv6 address in brackets.
pub(crate) fn endpoint(text: &str) -> CheckResult {
    let host = |host: &str| match host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_domain(host),
    };
    let fits = text.rsplit_once(':').is_some_and(|(name, port)| {
        host(name)
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if fits {
        return Ok(());
    }
    Err(not(
        text,
        "an endpoint such as `home.example.org:51820` or `[2001:db8::1]:51820`",
    ))
}

/// The value of a quadlet's key: one line.
pub(crate) fn one_line(text: &str) -> CheckResult {
    if text.chars().any(char::is_control) || text.len() > 4096 {
        return Err(value_error(
            "found a line break or control character, expected one line",
        ));
    }
    Ok(())
}
