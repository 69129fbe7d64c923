//! Entries of `devices`: `HOST[:CONTAINER[:PERMISSIONS]]`.

/// A device node of the machine that a container can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMapping<'a> {
    /// Path on the machine, below `/dev/`.
    pub host: &'a str,
    /// Path in the container, below `/dev/`.
    pub container: &'a str,
    /// The program may read from it.
    pub reads: bool,
    /// The program may write to it.
    pub writes: bool,
}

impl<'a> DeviceMapping<'a> {
    /// Parses an entry; `None` if it is invalid. Permissions are a subset of `r`, `w` and `m` with
    /// at least `r` or `w`; all of them by default.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(':');
        let host = parts.next()?;
        let container = parts.next().unwrap_or(host);
        let permissions = parts.next().unwrap_or("rwm");
        let known = permissions.bytes().all(|byte| b"rwm".contains(&byte));
        let once = |letter| permissions.matches(letter).count() <= 1;
        let fits = parts.next().is_none()
            && is_device(host)
            && is_device(container)
            && known
            && ['r', 'w', 'm'].into_iter().all(once);
        let (reads, writes) = (permissions.contains('r'), permissions.contains('w'));
        (fits && (reads || writes)).then_some(Self {
            host,
            container,
            reads,
            writes,
        })
    }
}

/// Whether the path is a normalised path below `/dev/`, without whitespace and control characters.
fn is_device(path: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let letter = |letter: char| !letter.is_whitespace() && !letter.is_control();
    path.strip_prefix("/dev/")
        .is_some_and(|rest| rest.split('/').all(part))
        && path.chars().all(letter)
        && path.len() <= 4095
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_podman_takes_and_nothing_else() {
        let read = |text| {
            DeviceMapping::parse(text).map(|one| (one.host, one.container, one.reads, one.writes))
        };
        let tty = "/dev/ttyUSB0";
        assert_eq!(read(tty), Some((tty, tty, true, true)));
        assert_eq!(
            read("/dev/serial/by-id/a:/dev/ttyUSB0"),
            Some(("/dev/serial/by-id/a", tty, true, true))
        );
        assert_eq!(
            read("/dev/a:/dev/b:r"),
            Some(("/dev/a", "/dev/b", true, false))
        );
        for wrong in [
            "",
            "ttyUSB0",
            "/dev",
            "/dev/",
            "/etc/passwd",
            "/dev/../etc/passwd",
            "/dev//a",
            "/dev/./a",
            "/dev/a b",
            "/dev/a:",
            "/dev/a:r",
            "/dev/a:/etc/b",
            "/dev/a:/dev/b:",
            "/dev/a:/dev/b:x",
            "/dev/a:/dev/b:m",
            "/dev/a:/dev/b:rr",
            "/dev/a:/dev/b:r:w",
            "/dev/a\n",
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
