//! How to add a parameter to the kernel's command line.

use std::path::PathBuf;

/// The boot loader that sets the kernel's command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BootLoader {
    /// GRUB as on Debian and related distributions: `/etc/default/grub.d` and `update-grub`.
    Grub,
    /// A boot loader that `grubby` manages, as on Fedora and related distributions.
    Grubby,
    /// The firmware of a Raspberry Pi, which reads the first line of this file.
    Firmware(PathBuf),
    #[default]
    Unknown,
}

impl BootLoader {
    /// The command that adds a parameter to the command line and reboots; a sentence where the boot
    /// loader is not known.
    pub(super) fn with_word(&self, word: &str) -> String {
        match self {
            Self::Grub => format!(
                "sudo mkdir -p /etc/default/grub.d && \
                 echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {word}\"' | \
                 sudo tee -a /etc/default/grub.d/60-kat.cfg && sudo update-grub && sudo reboot"
            ),
            Self::Grubby => {
                format!("sudo grubby --update-kernel=ALL --args={word} && sudo reboot")
            }
            Self::Firmware(file) => {
                format!(
                    "sudo sed -i '1s/$/ {word}/' {} && sudo reboot",
                    file.display()
                )
            }
            Self::Unknown => format!(
                "add {word} to the kernel's command line in the boot loader's settings, and boot again"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[test]
    fn each_boot_loader_has_its_own_command() {
        let word = "cgroup_enable=memory";
        for (loader, begins) in [
            (BootLoader::Grub, "sudo mkdir -p /etc/default/grub.d && "),
            (
                BootLoader::Grubby,
                "sudo grubby --update-kernel=ALL --args=cgroup_enable=memory && sudo reboot",
            ),
            (
                BootLoader::Firmware("/boot/firmware/cmdline.txt".into()),
                "sudo sed -i '1s/$/ cgroup_enable=memory/' /boot/firmware/cmdline.txt && ",
            ),
            (
                BootLoader::Unknown,
                "add cgroup_enable=memory to the kernel's",
            ),
        ] {
            let command = loader.with_word(word);
            assert!(command.starts_with(begins), "{command}");
        }
    }

    /// Runs the command in a shell, without `sudo` and the reboot, and with `there` in place of
    /// `folder`.
    fn run(command: &str, folder: &str, there: &str) {
        let command = command
            .replace("sudo reboot", "true")
            .replace("sudo update-grub", "true")
            .replace("sudo ", "")
            .replace(folder, there);
        let done = Command::new("sh").args(["-ec", &command]).output().unwrap();
        assert!(done.status.success(), "{command}: {done:?}");
    }

    #[test]
    fn grub_reads_the_word_after_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().to_str().unwrap();
        for word in ["one=1", "two"] {
            run(
                &BootLoader::Grub.with_word(word),
                "/etc/default/grub.d",
                there,
            );
        }
        let source =
            format!("GRUB_CMDLINE_LINUX=quiet; . {there}/60-kat.cfg; echo $GRUB_CMDLINE_LINUX");
        let read = Command::new("sh").args(["-c", &source]).output().unwrap();
        assert_eq!(read.stdout, b"quiet one=1 two\n", "{read:?}");
    }

    #[test]
    fn the_firmware_reads_the_word_on_the_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cmdline.txt");
        fs::write(&file, "console=tty1 root=/dev/x\n").unwrap();
        let loader = BootLoader::Firmware("/boot/firmware/cmdline.txt".into());
        run(
            &loader.with_word("a=b"),
            "/boot/firmware/cmdline.txt",
            file.to_str().unwrap(),
        );
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "console=tty1 root=/dev/x a=b\n"
        );
    }
}
