//! Progress of long operations: a changing line on a terminal, separate lines in a pipe.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::console::Console;

/// The progress of one operation, until it is dropped.
pub(super) struct ProgressDisplay<'run> {
    console: &'run Console,
    bar: Option<ProgressBar>,
    shown: String,
}

impl<'run> ProgressDisplay<'run> {
    pub(super) fn start(console: &'run Console) -> Self {
        let bar = console.interactive.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(120));
            console.show_progress(bar.clone());
            bar
        });
        Self {
            console,
            bar,
            shown: String::new(),
        }
    }

    /// Shows the progress; a repeated text is shown once.
    pub(super) fn update(&mut self, text: &str) {
        if self.shown == text {
            return;
        }
        text.clone_into(&mut self.shown);
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => self.console.note(text),
        }
    }

    /// Prints a line that stays on the screen.
    pub(super) fn note(&self, text: &str) {
        self.console.note(text);
    }
}

impl Drop for ProgressDisplay<'_> {
    fn drop(&mut self) {
        if self.bar.is_some() {
            self.console.clear_progress();
        }
    }
}
