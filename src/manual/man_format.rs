//! Text in the language of man(7).

/// A text that grows by a line at a time.
#[derive(Debug, Default)]
pub(crate) struct ManText {
    text: String,
}

impl ManText {
    /// A macro of man(7), or a request of roff(7), with its arguments.
    pub(crate) fn request(&mut self, name: &str, arguments: &[&str]) {
        self.text.push('.');
        self.text.push_str(name);
        for argument in arguments {
            self.text.push(' ');
            self.text.push_str(&quoted(argument));
        }
        self.text.push('\n');
    }

    /// A line of text. Words between backticks are bold.
    pub(crate) fn text(&mut self, text: &str) {
        let parts = text.split('`').enumerate();
        let parts = parts.filter(|(_, part)| !part.is_empty());
        let line: String = parts
            .map(|(number, part)| match number % 2 {
                0 => escaped(part),
                _ => in_bold(part),
            })
            .collect();
        self.line(&line);
    }

    /// A line of bold text.
    pub(crate) fn bold(&mut self, text: &str) {
        self.line(&in_bold(text));
    }

    /// A line whose backticks are characters as others.
    pub(crate) fn literal(&mut self, text: &str) {
        self.line(&escaped(text));
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: &str) {
        // A line that begins with a full stop is a request. An apostrophe is escaped already.
        if line.starts_with('.') {
            self.text.push_str("\\&");
        }
        self.text.push_str(line);
        self.text.push('\n');
    }
}

fn in_bold(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text))
}

/// The text with escapes for what roff obeys, and for what it would print as another character: a hyphen, a quotation
/// mark or an accent in the place of a character of ASCII.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\\\"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '`' => escaped.push_str("\\(ga"),
            '^' => escaped.push_str("\\(ha"),
            '~' => escaped.push_str("\\(ti"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The text as one argument of a macro, which reads its arguments once more than a line of text.
fn quoted(text: &str) -> String {
    let escaped = escaped(text).replace("\\\\", "\\(rs").replace('"', "\\(dq");
    if escaped.is_empty() || escaped.contains(' ') {
        format!("\"{escaped}\"")
    } else {
        escaped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_roff_would_obey_or_replace_is_escaped() {
        let mut text = ManText::default();
        text.text(".a-b 'c' `--d` ~/e^f\\g");
        assert_eq!(
            text.finish(),
            "\\&.a\\-b \\(aqc\\(aq \\fB\\-\\-d\\fR \\(ti/e\\(haf\\\\g\n"
        );
        let mut text = ManText::default();
        text.literal(".`a`");
        text.bold(".b");
        assert_eq!(text.finish(), "\\&.\\(gaa\\(ga\n\\fB.b\\fR\n");
    }

    #[test]
    fn an_argument_of_a_macro_stays_one() {
        let mut text = ManText::default();
        text.request("SS", &["a \"b\" c-d"]);
        text.request("TH", &["x\\y", ""]);
        assert_eq!(
            text.finish(),
            ".SS \"a \\(dqb\\(dq c\\-d\"\n.TH x\\(rsy \"\"\n"
        );
    }
}
