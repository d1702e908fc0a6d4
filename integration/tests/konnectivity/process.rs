//! Programs that a test runs, and where they listen.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
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

/// A process; it ends with this. Its log is printed where the test fails.
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: RefCell<Child>,
}

impl Process {
    pub(crate) fn start(name: &str, folder: &Path, binary: &Path, arguments: &[String]) -> Self {
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log).unwrap();
        let child = Command::new(binary)
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
            child: RefCell::new(child),
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.borrow().id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Its open files (proc(5), `fd`).
    pub(crate) fn open_files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.borrow().id());
        fs::read_dir(folder).unwrap().count()
    }

    /// Stops it as SIGSTOP does, and waits until each of its threads has stopped (proc(5), `stat`).
    pub(crate) fn stop(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.borrow().id());
        let has_stopped = |task: io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| stat.contains(") T "))
        };
        within("it stops", || fs::read_dir(&tasks).unwrap().all(has_stopped));
    }

    pub(crate) fn kill(&self) {
        let mut child = self.child.borrow_mut();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Its exit code; none where it runs longer than this.
    pub(crate) fn exit(&self, patience: Duration) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if let Some(status) = self.child.borrow_mut().try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut();
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
