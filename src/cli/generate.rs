//! Completions and man pages, made from the command line's own description.

use super::{
    args::{self, Completion, Man, Shell},
    console::Console,
    errors::CliError,
};

pub(super) fn completion(console: &Console, arguments: &Completion) -> Result<(), CliError> {
    let shell = match arguments.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "katcall", &mut script);
    console.print(&String::from_utf8_lossy(&script))
}

pub(super) fn man(arguments: &Man) -> Result<(), CliError> {
    let folder = &arguments.folder;
    let write = || {
        std::fs::create_dir_all(folder)?;
        clap_mangen::generate_to(args::command(), folder)
    };
    write()
        .map_err(|error| CliError::failed(format!("man pages in `{}`: {error}", folder.display())))
}
