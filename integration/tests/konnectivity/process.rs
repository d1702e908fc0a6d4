//! Programs that a test runs, and where they listen.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

#[track_caller]
pub(crate) fn within(what: &str, is_so: impl FnMut() -> bool) {
    egret_integration::within(PATIENCE, what, is_so);
}

/// A port that nobody listens on. Upstream takes none above 49151.
pub(crate) fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap();
    let given = given.get_or_insert_default();
    loop {
        let port = rand::random_range(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && given.insert(port) {
            return port;
        }
    }
}

/// A program in a network namespace. `ip` becomes the program, so that its process is that of the command.
pub(crate) fn command_in(namespace: Option<&str>, binary: &Path) -> Command {
    let Some(namespace) = namespace else {
        return Command::new(binary);
    };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(binary);
    command
}

/// A process; it ends with this. Its log is printed where the test fails.
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Process {
    /// In a network namespace; none is the test's own.
    pub(crate) fn start_in(
        namespace: Option<&str>,
        name: &str,
        folder: &Path,
        binary: &Path,
        arguments: &[String],
    ) -> Self {
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log).unwrap();
        let child = command_in(namespace, binary)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        Self {
            name: name.to_owned(),
            log,
            child: Mutex::new(child),
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.lock().unwrap().id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Its open files (proc(5), `fd`).
    pub(crate) fn open_files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.lock().unwrap().id());
        fs::read_dir(folder).unwrap().count()
    }

    /// Stops it as SIGSTOP does, and waits until each of its threads has stopped (proc(5), `stat`).
    pub(crate) fn stop(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.lock().unwrap().id());
        let has_stopped = |task: io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| stat.contains(") T "))
        };
        within("it stops", || fs::read_dir(&tasks).unwrap().all(has_stopped));
    }

    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Its exit code; none where it runs longer than this.
    pub(crate) fn exit(&self, patience: Duration) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if let Some(status) = self.child.lock().unwrap().try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // One that ended has no more to be ended.
        drop(child.kill());
        drop(child.wait());
        if std::thread::panicking() {
            let log = self.log();
            let end: Vec<_> = log.lines().rev().take(30).collect();
            for line in end.iter().rev() {
                eprintln!("{}: {line}", self.name);
            }
        }
    }
}
