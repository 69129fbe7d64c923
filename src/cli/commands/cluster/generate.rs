//! Completion scripts and man pages, generated from the description of the command line.

use crate::{
    args,
    args::{CompletionArgs, ManArgs, Shell},
    console::Console,
    errors::CliError,
    manual,
};

pub(crate) fn completion(console: &Console, arguments: &CompletionArgs) -> Result<(), CliError> {
    let shell = match arguments.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "katcall", &mut script);
    let script = without_hidden(&String::from_utf8_lossy(&script));
    console.print(&match arguments.shell {
        Shell::Bash => format!("{script}{BASH}"),
        // The function that zsh calls first looks for live names.
        Shell::Zsh => script.replacen("\n_katcall() {", &format!("\n{ZSH}_katcall_words() {{"), 1),
        Shell::Fish => format!("{script}{FISH}"),
    })
}

/// The script without the hidden commands among its proposals: the generators for shells show them.
fn without_hidden(script: &str) -> String {
    let command = args::command();
    let hidden = command.get_subcommands().filter(|one| one.is_hide_set());
    let hidden: Vec<&str> = hidden.map(clap::Command::get_name).collect();
    // A line for each command, of zsh and of fish.
    let is_hidden = |line: &str| {
        hidden.iter().any(|name| {
            line.trim_start().starts_with(&format!("'{name}:"))
                || line.contains(&format!(" -a \"{name}\" "))
        })
    };
    let mut shown = String::new();
    for line in script.lines().filter(|line| !is_hidden(line)) {
        // A line for all commands, of bash.
        let listed = line.split_once("opts=\"").and_then(|(indent, rest)| {
            let words = rest.strip_suffix('"')?.split(' ');
            let words: Vec<&str> = words.filter(|word| !hidden.contains(word)).collect();
            Some(format!("{indent}opts=\"{}\"", words.join(" ")))
        });
        shown.push_str(listed.as_deref().unwrap_or(line));
        shown.push('\n');
    }
    shown
}

/// Completes names where clap knows only the kind of argument. A word that ends in one of these signs
/// is continued: `/`, `.`, `=`.
const BASH: &str = r#"
_katcall_live() {
    local word=${COMP_WORDS[COMP_CWORD]} name names=()
    local -a before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
    _katcall "$@"
    [[ $word == -* ]] && return
    # bash splits words at this sign.
    if [[ $word == = ]]; then
        before+=("=")
        word=
    fi
    while IFS= read -r name; do
        [[ $name == "$word"* ]] && names+=("$name")
    done < <("${COMP_WORDS[0]}" __complete "--current=$word" -- "${before[@]}" 2>/dev/null)
    ((${#names[@]})) || return 0
    COMPREPLY=("${names[@]}")
    # The space after a word comes only where one is left.
    [[ ${names[0]} == *[/.=] ]] && compopt -o nospace 2>/dev/null
    # A path here may be meant, too.
    if [[ ${names[*]} == *:/* ]]; then
        while IFS= read -r name; do
            [[ -d $name ]] && name+=/
            COMPREPLY+=("$name")
        done < <(compgen -f -- "$word")
    fi
    return 0
}
complete -F _katcall_live -o bashdefault -o default katcall
"#;

const ZSH: &str = r#"_katcall() {
    local -a names open whole
    names=(${(f)"$($words[1] __complete "--current=$words[CURRENT]" -- ${words[2,CURRENT-1]} 2>/dev/null)"})
    if (( ! $#names )) || [[ $words[CURRENT] == -* ]]; then
        _katcall_words "$@"
        return
    fi
    open=(${(M)names:#*[/.=]})
    whole=(${names:#*[/.=]})
    (( $#open )) && compadd -S '' -a open
    (( $#whole )) && compadd -a whole
    (( ${#${(M)names:#*:/}} )) && _files
    return 0
}

"#;

const FISH: &str = r#"
function __katcall_live
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    katcall __complete "--current=$current" -- $words[2..] 2>/dev/null
end
complete -c katcall -f -k -a '(__katcall_live)'
complete -c katcall -n '__fish_seen_subcommand_from cp' -F
"#;

pub(crate) fn man(arguments: &ManArgs) -> Result<(), CliError> {
    let folder = &arguments.folder;
    let write = || {
        std::fs::create_dir_all(folder)?;
        manual::write_man_pages(folder)
    };
    write()
        .map_err(|error| CliError::failed(format!("man pages in `{}`: {error}", folder.display())))
}
