//! The root of the files that KAT reads and writes.

use std::path::{Path, PathBuf};

/// `/` on a real machine, any other folder in tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The tree at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The path of the root itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path in this tree of `path` on a real machine. A leading `/` is removed; `..` is left as
    /// it is.
    pub fn below(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absolute_path_stays_below_the_root() {
        let root = Root::new("/tmp/machine");
        for path in ["/etc/kat", "etc/kat", "//etc/kat"] {
            assert_eq!(
                root.below(path),
                Path::new("/tmp/machine/etc/kat"),
                "{path}"
            );
        }
        assert_eq!(Root::new("/").below("/etc/kat"), Path::new("/etc/kat"));
    }
}
