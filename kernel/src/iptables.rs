//! iptables through its own programs: `iptables-save` to list, `iptables-restore --noflush` to change.
//!
//! There is no library to link to, and both flavours keep their rules in a private form, so their programs are the
//! interface. A restore is atomic per table and family: packets meet the old rules or the new ones. Both flavours print
//! a rule in one canonical form; [`Rule`] renders exactly that form, so a listing is compared with what should be
//! there as text. (Round trips through the real programs of both flavours and families are in the tests.)
//!
//! What the flavour `nft` holds can also be written without its programs, in one transaction for both families: see [`netlink_writer`].
//!
//! What does not hold: a rewritten chain starts counting at zero, and counters handed to a restore are lost in
//! `ip6tables-nft` 1.8.9. Whoever wants totals adds up before rewriting.

mod flavour;
mod xtables_lock;
mod sockopt;
pub mod legacy;
mod name;
mod rule;
mod batch;
mod listing;
mod counters;
pub mod netlink_writer;

pub use batch::Batch;
pub use counters::ChainCounters;
pub use flavour::{Detection, DetectionReason, Flavour};
pub use listing::{Chain, CountedRule, TableListing, parse};
pub use name::{ChainName, ChainRef, Hook, InterfaceName, InterfacePattern, NameError, SetName, Table};
pub use rule::{
    ConnState, Direction, Endpoint, Limit, Match, Ports, Protocol, RejectWith, Rule, SetLookup, Target,
    TcpSegments,
};

use crate::Family;
use crate::child_processes;
use crate::fault_points::{self, Step};
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Why a table could not be listed or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot run {program}: {source}")]
    Run {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} is not installed, or not on the PATH: what it is for is not enforced")]
    Missing { program: String },
    #[error("{program} cannot list the table {table}: {stderr}")]
    Save {
        program: String,
        table: Table,
        stderr: String,
    },
    #[error("{program} refused the batch{}: {stderr}", at(*line, text.as_deref()))]
    Restore {
        program: String,
        line: Option<usize>,
        text: Option<String>,
        stderr: String,
    },
    #[error("another program holds the lock of iptables (/run/xtables.lock), and {program} has to wait")]
    Locked { program: String },
    #[error(
        "neither iptables-nft-save nor iptables-legacy-save can be run: install one, or put it on the PATH"
    )]
    NoPrograms,
}

fn at(line: Option<usize>, text: Option<&str>) -> String {
    match (line, text) {
        (Some(line), Some(text)) => format!(" at line {line}, \"{text}\""),
        (Some(line), None) => format!(" at line {line}"),
        (None, _) => String::new(),
    }
}

/// How long a restore waits where somebody takes the lock of the legacy flavour right before it.
const LOCK_SECONDS: u32 = 2;

/// The tables of one family, in one flavour, in the network namespace of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpTables {
    flavour: Flavour,
    family: Family,
}

impl IpTables {
    pub fn new(flavour: Flavour, family: Family) -> Self {
        Self { flavour, family }
    }

    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether the program that changes tables is on the PATH; without it there is none that lists them either.
    pub fn is_installed(&self) -> bool {
        let program = self.flavour.program(self.family, "restore");
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(&program).exists())
    }

    /// Lists a table with its counters. In the legacy flavour this creates the (empty) table if nobody did before.
    pub fn save(&self, table: Table) -> Result<TableListing, Error> {
        let program = self.flavour.program(self.family, "save");
        let output = run(&program, &["-c", "-t", table.name()], "")?;
        if !output.status.success() {
            return Err(Error::Save {
                program,
                table,
                stderr: words(&output),
            });
        }
        let found = parse(&String::from_utf8_lossy(&output.stdout))
            .into_iter()
            .find(|found| found.name == table.name());
        Ok(found.unwrap_or_else(|| TableListing::empty(table.name())))
    }

    /// Lists all tables that there are, without counters; makes none. What others made unreadable for these programs is left out.
    pub fn save_all(&self) -> Result<Vec<TableListing>, Error> {
        let output = run(&self.flavour.program(self.family, "save"), &[], "")?;
        Ok(parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// How many packets each rule of a chain of the filter table has seen; none where the chain is not there. Costs
    /// little in a large table of the nft flavour. For chains whose rules bear no remarks.
    pub fn count_chain(&self, chain: &ChainName) -> Result<Option<Vec<u64>>, Error> {
        let program = self.flavour.single_program(self.family);
        let wait = LOCK_SECONDS.to_string();
        let arguments = ["-w", &wait, "-t", "filter", "-v", "-S", chain.as_str()];
        let output = run(&program, &arguments, "")?;
        let counts = || listing::packets(&String::from_utf8_lossy(&output.stdout));
        Ok(output.status.success().then(counts))
    }

    /// Applies a batch as [`Batch`] renders it: all of each table in it, or nothing of that table. Chains and rules
    /// that it does not name stay.
    pub fn restore(&self, batch: &str) -> Result<(), Error> {
        let program = self.flavour.program(self.family, "restore");
        if self.flavour == Flavour::Legacy && !xtables_lock::is_free_soon() {
            return Err(Error::Locked { program });
        }
        let wait = LOCK_SECONDS.to_string();
        fault_points::before(Step::Rules(self.family), || batch.to_owned()).map_err(|errno| {
            let program = program.clone();
            match errno {
                fault_points::REFUSED => Error::Restore {
                    program,
                    line: None,
                    text: None,
                    stderr: errno.to_string(),
                },
                _ => Error::Run {
                    program,
                    source: errno.into(),
                },
            }
        })?;
        let output = run(&program, &["--noflush", "--counters", "-w", &wait], batch)?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = words(&output);
        if stderr.contains("xtables lock") && stderr.contains("Stopped waiting") {
            return Err(Error::Locked { program });
        }
        let line = failed_line(&stderr);
        let text = line
            .and_then(|line| batch.lines().nth(line.checked_sub(1)?))
            .map(str::to_owned);
        Err(Error::Restore {
            program,
            line,
            text,
            stderr,
        })
    }
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<Output, Error> {
    let failed = |source| Error::Run {
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::Missing {
                program: program.to_owned(),
            },
            _ => failed(source),
        })?;
    // It changes nothing before it has read its input.
    child_processes::remember(child.id());
    let mut stdin = child
        .stdin
        .take()
        .expect("the child was started with a pipe as its input");
    // A child that stops reading early says why by its exit status and its errors, not by the broken pipe.
    let written = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(failed)?;
    match written {
        Err(source) if output.status.success() => Err(failed(source)),
        Err(_) | Ok(()) => Ok(output),
    }
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(str::trim)
        .filter(|line| is_told(line))
        .collect::<Vec<_>>()
        .join("; ")
}

fn is_told(line: &str) -> bool {
    !line.is_empty() && !line.starts_with("Try `")
}

/// "line 6 failed", "Error occurred at line: 4". A batch that only the kernel refuses is reported at its `COMMIT`.
fn failed_line(stderr: &str) -> Option<usize> {
    let (_, behind) = stderr.split_once("line")?;
    let digits: String = behind
        .trim_start_matches([':', ' '])
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok().or_else(|| failed_line(behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failing_line_is_found_in_the_words_of_both_flavours() {
        let cases = [
            (
                "iptables-nft-restore v1.8.9 (nf_tables): Chain 'NOPE' does not exist; Error occurred at line: 6",
                Some(6),
            ),
            ("iptables-restore: line 2 failed", Some(2)),
            (
                "iptables-nft-restore: line 12 failed: No chain/target/match by that name.",
                Some(12),
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): ; line 6: CHAIN_DEL failed (Device or resource busy): chain C",
                Some(6),
            ),
            ("iptables-restore: COMMIT expected at line 4", Some(4)),
            ("a line without a number", None),
            ("", None),
        ];
        for (stderr, line) in cases {
            assert_eq!(failed_line(stderr), line, "{stderr}");
        }
    }
}
