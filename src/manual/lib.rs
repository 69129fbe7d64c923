//! Pages of the manual: their parts, how a command line becomes pages, and how pages are written as
//! man pages for the package and as Markdown for `docs/reference`.
//!
//! `katcall` and `kat-agent` use this crate. Each has a hidden command `man`, which writes its pages
//! into a folder, and a test that compares its pages with `docs/reference`.
//!
//! Where to begin:
//! - `page.rs`: [`ManualPage`] and [`Block`], and the Markdown of a page.
//! - `command_line.rs`: [`CommandLine`], the pages of a program and of its commands, from clap's
//!   description of the command line.
//! - `man_format.rs`: the language of man(7), and what it takes to write text in it.
//! - `audit.rs`: what a man page lacks or has wrong, for the tests of the programs.
//!
//! Rules:
//! - What `--help` says is taken from clap and written nowhere else. A program adds files, examples
//!   and references to other pages.
//! - Texts are plain, and words between backticks are literal. Only `man_format.rs` knows the
//!   characters that man(7) obeys.
//! - The same program gives the same pages: pages have no date, and commands and options have the
//!   order of their declaration.
//!
//! Words: a program has commands, and a command may have commands below it. An argument is an option,
//! with a name such as `--wait`, or is known by its position.
//!
//! Tests are in the files themselves; `tests/package/run` has groff(1) format every page of the
//! package.

pub mod audit;
mod command_line;
mod man_format;
mod page;

pub use command_line::CommandLine;
pub use page::{Block, ManualPage, Section};
