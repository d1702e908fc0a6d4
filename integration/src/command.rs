//! Programs run to their end, with their output and a deadline.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{WorldError, netns::Netns};

/// How long a program may take of which nothing else is said.
pub(crate) const PROGRAM_TIME: Duration = Duration::from_secs(10);

/// What a program said and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit code; `None` when a signal ended it, as at the deadline.
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// It was killed because its time was over.
    pub timed_out: bool,
}

impl Output {
    pub fn success(&self) -> bool {
        self.status == Some(0)
    }
}

/// Runs `command` inside `netns`; at the deadline its process group is killed.
pub(crate) fn run_within(
    netns: &Netns,
    mut command: Command,
    deadline: Duration,
) -> Result<Output, WorldError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let argv = describe(&command);
    let child = netns.spawn(command).map_err(|source| WorldError::Spawn {
        argv: argv.clone(),
        source,
    })?;
    finish(child, deadline).map_err(|source| WorldError::Spawn { argv, source })
}

/// Runs a program of the host inside `netns`.
pub(crate) fn run(netns: &Netns, argv: &[&str]) -> Result<Output, WorldError> {
    let (program, arguments) = argv.split_first().expect("a command has a program");
    let mut command = Command::new(program);
    command.args(arguments);
    run_within(netns, command, PROGRAM_TIME)
}

/// Runs a program of the host inside `netns`; anything but success is an error.
pub(crate) fn ask(netns: &Netns, argv: &[&str]) -> Result<String, WorldError> {
    let output = run(netns, argv)?;
    if output.success() {
        return Ok(output.stdout);
    }
    let status = output
        .status
        .map_or_else(|| "a signal".into(), |code| code.to_string());
    Err(WorldError::Failed {
        argv: argv.join(" "),
        status,
        stderr: output.stderr,
    })
}

/// The same for what lists rules or sets. That fails while they change: what names a set is listed before it is asked which
/// set that is, and by then the set may be gone ("Set with index 0 in kernel doesn't exist").
pub(crate) fn list(netns: &Netns, argv: &[&str]) -> Result<String, WorldError> {
    const TRIES: usize = 10;
    let mut listings = std::iter::repeat_with(|| ask(netns, argv)).take(TRIES - 1);
    match listings.find(Result::is_ok) {
        Some(listing) => listing,
        None => ask(netns, argv),
    }
}

fn finish(mut child: Child, deadline: Duration) -> std::io::Result<Output> {
    let group = Pid::from_raw(child.id().cast_signed());
    let (tell, ended) = mpsc::channel();
    let stdout = collect(child.stdout.take().expect("stdout was piped"), tell.clone());
    let stderr = collect(child.stderr.take().expect("stderr was piped"), tell);
    // Both pipes closed means that the whole process group is done with them.
    let timed_out = [(); 2].iter().any(|()| ended.recv_timeout(deadline).is_err());
    if timed_out && let Err(errno) = killpg(group, Signal::SIGKILL) {
        eprintln!("kill {group}: {errno}");
    }
    let status = child.wait()?.code();
    let text = |reader: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().expect("reading a pipe does not panic")).into_owned()
    };
    Ok(Output {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
        timed_out,
    })
}

fn collect(
    mut pipe: impl Read + Send + 'static,
    ended: mpsc::Sender<()>,
) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Err(error) = pipe.read_to_end(&mut bytes) {
            eprintln!("cannot read a child's pipe: {error}");
        }
        // Nobody listens any more when the deadline has passed.
        ended.send(()).unwrap_or_default();
        bytes
    })
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
