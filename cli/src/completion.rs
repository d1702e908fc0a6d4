//! `egret completion`: what makes a shell complete the options of `egret`.

use std::io::{self, Write};

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};

/// Which shell is asked for.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: SupportedShell,
}

const AFTER_HELP: &str = "\
bash:  egret completion bash > /etc/bash_completion.d/egret
zsh:   egret completion zsh > \"${fpath[1]}/_egret\"
fish:  egret completion fish > ~/.config/fish/completions/egret.fish";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SupportedShell {
    Bash,
    Zsh,
    Fish,
}

impl Arguments {
    /// Writes the script.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn run(&self, out: &mut impl Write) -> io::Result<()> {
        let shell = match self.shell {
            SupportedShell::Bash => Shell::Bash,
            SupportedShell::Zsh => Shell::Zsh,
            SupportedShell::Fish => Shell::Fish,
        };
        // The generator panics where a write fails: a reader may have gone.
        let mut script = Vec::new();
        generate(shell, &mut crate::Arguments::command(), "egret", &mut script);
        out.write_all(&script)?;
        out.flush()
    }
}
