//! Parsers for texts of the kernel and of programs. Pure.

use std::net::IpAddr;

/// The architecture's name in image platforms for its name in Rust.
pub fn architecture(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// A field of /proc/meminfo, in bytes (proc_meminfo(5)).
pub fn meminfo(text: &str, field: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// Name servers of a resolv.conf(5), in their order.
pub fn name_servers(text: &str) -> Vec<IpAddr> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .filter_map(|rest| {
            let word = rest.split_whitespace().next()?;
            // A link-local address may have its link behind a `%`.
            word.split('%').next()?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_memory_and_name_servers() {
        let text = "MemTotal:       2000 kB\nMemFree: 1 kB\nMemAvailable:   500 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(512_000));
        assert_eq!(meminfo(text, "Mem"), None);
        let text = "# nameserver 9.9.9.9\nnameserver 192.0.2.1\nnameservers 1.1.1.1\n nameserver fe80::1%eth0\nsearch x\n";
        let expected: Vec<IpAddr> = ["192.0.2.1", "fe80::1"].map(|a| a.parse().unwrap()).into();
        assert_eq!(name_servers(text), expected);
        assert_eq!(architecture("aarch64"), "arm64");
    }
}
