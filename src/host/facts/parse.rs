//! Parsers for texts of the kernel and of programs. Pure.

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
pub(crate) fn meminfo(text: &str, field: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// The three means of /proc/loadavg (proc_loadavg(5)).
pub(crate) fn loadavg(text: &str) -> Option<[f64; 3]> {
    let mut means = text.split_whitespace().map(|word| word.parse().ok());
    Some([means.next()??, means.next()??, means.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_memory_and_the_architecture() {
        let text = "MemTotal:       2000 kB\nMemFree: 1 kB\nMemAvailable:   500 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(512_000));
        assert_eq!(meminfo(text, "Mem"), None);
        assert_eq!(architecture("aarch64"), "arm64");
        let load = loadavg("0.20 0.18 12.50 1/80 11206\n");
        assert_eq!(load, Some([0.2, 0.18, 12.5]));
        assert_eq!(loadavg("0.20 0.18"), None);
    }
}
