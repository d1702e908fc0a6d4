//! A machine: namespaces (net, mount, pid, uts, ipc, cgroup) with an init process. What runs in it ends with the init process.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sys::{
        signal::{self, Signal},
        wait::wait,
    },
    unistd::Pid,
};

use super::Failure;

/// Of a log that is shown.
const LOG_LINES: usize = 15;
const SYSTEM: &str = "/sys/fs/cgroup";

/// A running machine.
pub(super) struct Machine {
    name: String,
    folder: PathBuf,
    unshare: Child,
    init: String,
    programs: Vec<Program>,
    cgroups: Vec<PathBuf>,
}

/// What was started in a machine.
struct Program {
    path: String,
    arguments: String,
    nsenter: Child,
}

/// A process of a machine, also one in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// As this machine counts.
    pub(super) pid: i32,
    pub(super) arguments: Vec<String>,
}

impl Machine {
    /// Starts it with `/run`, `/var/lib` and `/var/log` of its own, and overlays of `/etc` and `/opt`, all in `folder`.
    pub(super) fn start(name: &str, folder: &Path) -> Result<Self, Failure> {
        let folder = folder.join(name);
        for part in ["lib", "log", "etc", "etc-work", "opt", "opt-work"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let cgroups = make_cgroups(name)?;
        let this = std::env::current_exe()?;
        let mut command = Command::new("setpriv");
        command
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--net",
                "--mount",
                "--pid",
                "--uts",
                "--ipc",
            ])
            .args(["--cgroup", "--fork", "--kill-child", "--mount-proc"])
            .arg(this)
            .args(["init", name])
            .arg(&folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(fs::File::create(folder.join("init.log"))?)
            .stderr(fs::File::create(folder.join("init.err"))?);
        let procs = cgroups
            .iter()
            .map(|cgroup| cgroup.join("cgroup.procs"))
            .collect::<Vec<_>>();
        #[allow(
            unsafe_code,
            reason = "the child has to be in its cgroups before it unshares their namespace"
        )]
        // SAFETY: writes "0" into files by plain system calls; this process has one other thread, which allocates nothing meanwhile
        // that the child would wait for.
        unsafe {
            command.pre_exec(move || procs.iter().try_for_each(|path| fs::write(path, "0")));
        }
        let unshare = command
            .spawn()
            .map_err(|error| format!("setpriv, unshare: {error}"))?;
        let mut machine = Self {
            name: name.to_owned(),
            init: String::new(),
            folder,
            unshare,
            programs: Vec::new(),
            cgroups,
        };
        machine.wait_for_init()?;
        machine.ip(&["link", "set", "lo", "up"])?;
        Ok(machine)
    }

    /// Starts a program in it, with arguments that spaces part; its log is in the folder of the machine.
    pub(super) fn spawn(&mut self, program: &str, arguments: &str) -> Result<(), Failure> {
        let log = self.folder.join(format!("{}.log", file_name(program)));
        let log = fs::File::options().create(true).append(true).open(log)?;
        let nsenter = Command::new("nsenter")
            .args(["--all", "--target", &self.init, program])
            .args(arguments.split_whitespace())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.programs.push(Program {
            path: program.to_owned(),
            arguments: arguments.to_owned(),
            nsenter,
        });
        Ok(())
    }

    /// Ends a program that was started here, by SIGKILL.
    pub(super) fn kill(&mut self, name: &str) -> Result<(), Failure> {
        let program = self.program(name)?;
        let nsenter = program.nsenter.id();
        let children = fs::read_to_string(format!("/proc/{nsenter}/task/{nsenter}/children"))?;
        for child in children.split_whitespace() {
            signal::kill(Pid::from_raw(child.parse()?), Signal::SIGKILL)?;
        }
        program.nsenter.wait()?;
        Ok(())
    }

    /// Starts a program again that has ended.
    pub(super) fn start_again(&mut self, name: &str) -> Result<(), Failure> {
        let Program { path, arguments, .. } = self.program(name)?;
        let (path, arguments) = (path.clone(), arguments.clone());
        self.programs.retain(|program| program.path != path);
        self.spawn(&path, &arguments)
    }

    fn program(&mut self, name: &str) -> Result<&mut Program, Failure> {
        let found = self
            .programs
            .iter_mut()
            .find(|program| file_name(&program.path) == name);
        found.ok_or_else(|| format!("{name} was not started on {}", self.name).into())
    }

    /// Its processes of this name, those of containers among them.
    pub(super) fn processes(&self, name: &str) -> Result<Vec<Process>, Failure> {
        let cgroup = cgroup_name(&self.name);
        let pids = fs::read_dir("/proc")?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        // One that ends meanwhile is none.
        let found = pids.filter_map(|pid| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
            let arguments = read("cmdline")?;
            let arguments = arguments
                .split_terminator('\0')
                .map(str::to_owned)
                .collect::<Vec<_>>();
            let is_it = file_name(arguments.first()?) == name && read("cgroup")?.contains(&cgroup);
            is_it.then_some(Process { pid, arguments })
        });
        Ok(found.collect())
    }

    /// A path that leads to a file as the machine sees it.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    /// Runs a program in it to its end.
    pub(super) fn run(&self, argv: &[&str]) -> Result<String, Failure> {
        output(
            Command::new("nsenter")
                .args(["--all", "--target", &self.init])
                .args(argv),
            argv,
        )
    }

    /// `ip` in its network alone, so that process identifiers are this machine's.
    pub(super) fn ip(&self, arguments: &[&str]) -> Result<String, Failure> {
        let net = format!("--net=/proc/{}/ns/net", self.init);
        output(
            Command::new("nsenter").args([&net, "ip"]).args(arguments),
            arguments,
        )
    }

    /// The process of its init, as this machine counts.
    pub(super) fn init_process(&self) -> &str {
        &self.init
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn logs(&self) -> String {
        let mut files = fs::read_dir(&self.folder)
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>())
            .unwrap_or_default();
        files.retain(|path| {
            path.extension()
                .is_some_and(|ending| ending == "log" || ending == "err")
        });
        files.sort();
        files
            .iter()
            .map(|path| {
                let text = fs::read_to_string(path).unwrap_or_default();
                let lines = text.lines().collect::<Vec<_>>();
                let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
                format!("--- {} {}\n{end}\n", self.name, path.display())
            })
            .collect()
    }

    fn wait_for_init(&mut self) -> Result<(), Failure> {
        let ready = self.folder.join("ready");
        let is_there = crate::is_soon(Duration::from_secs(20), || ready.exists());
        if !is_there {
            return Err(format!("{} does not start:\n{}", self.name, self.logs()).into());
        }
        let parent = self.unshare.id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
        self.init = children.trim().to_owned();
        Ok(())
    }
}

impl Process {
    /// Whether it is in this pod: the host name of a pod that is not on the network of its node.
    pub(super) fn is_of(&self, pod: &str) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        let is_it = |variable: &[u8]| variable == format!("HOSTNAME={pod}").as_bytes();
        environment.split(|&octet| octet == 0).any(is_it)
    }

    pub(super) fn has_thread(&self, name: &str) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        let mut threads = threads.into_iter().flatten().flatten();
        threads.any(|thread| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        })
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(signal::kill(Pid::from_raw(self.pid), signal)?)
    }

    /// Ends it by SIGKILL.
    pub(super) fn kill(&self) -> Result<(), Failure> {
        self.signal(Signal::SIGKILL)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // `--kill-child` ends the init process with it, and that ends all others of its namespace.
        drop(self.unshare.kill());
        drop(self.unshare.wait());
        for program in &mut self.programs {
            drop(program.nsenter.kill());
            drop(program.nsenter.wait());
        }
        for cgroup in &self.cgroups {
            if !crate::is_soon(Duration::from_secs(10), || remove_cgroup(cgroup)) {
                eprintln!("{} is not empty", cgroup.display());
            }
        }
    }
}

/// What a machine's first process does: makes the mounts, and then takes the children of those that ended.
///
/// # Errors
/// When a mount fails.
pub fn init(name: &str, folder: &Path) -> Result<(), Failure> {
    let none = None::<&str>;
    fs::write("/proc/sys/kernel/hostname", name)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none)?;
    for tree in ["etc", "opt"] {
        let options = format!(
            "lowerdir=/{tree},upperdir={},workdir={}",
            folder.join(tree).display(),
            folder.join(format!("{tree}-work")).display()
        );
        mount(
            Some("overlay"),
            &*format!("/{tree}"),
            Some("overlay"),
            MsFlags::empty(),
            Some(&*options),
        )?;
    }
    for (part, at) in [("lib", "/var/lib"), ("log", "/var/log")] {
        mount(Some(&folder.join(part)), at, none, MsFlags::MS_BIND, none)?;
    }
    mount_cgroups()?;
    pretend_sysctls(folder)?;
    fs::write(folder.join("ready"), "")?;
    // The folder may be below what this covers.
    mount(
        Some("tmpfs"),
        "/run",
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )?;
    loop {
        if let Err(Errno::ECHILD) = wait() {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The same hierarchies at the same places, seen from the cgroup of the machine.
fn mount_cgroups() -> Result<(), Failure> {
    let none = None::<&str>;
    let hierarchies = hierarchies()?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none)?;
    if let [(path, kind, _)] = &*hierarchies {
        mount(Some("cgroup2"), path, Some(&**kind), MsFlags::empty(), none)?;
        return Ok(());
    }
    mount(
        Some("tmpfs"),
        SYSTEM,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )?;
    for (path, kind, controllers) in hierarchies {
        fs::create_dir_all(&path)?;
        let data = (kind == "cgroup").then_some(&*controllers);
        mount(Some("cgroup"), &path, Some(&*kind), MsFlags::empty(), data)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// kubelet writes these, and they are the whole machine's: it finds here what it wants, and writes into files.
fn pretend_sysctls(folder: &Path) -> Result<(), Failure> {
    let wanted = [
        ("vm/overcommit_memory", "1"),
        ("vm/panic_on_oom", "0"),
        ("kernel/panic", "10"),
        ("kernel/panic_on_oops", "1"),
        ("kernel/keys/root_maxkeys", "1000000"),
        ("kernel/keys/root_maxbytes", "25000000"),
    ];
    for (key, value) in wanted {
        let file = folder.join(key.replace('/', "."));
        fs::write(&file, value)?;
        mount(
            Some(&file),
            &Path::new("/proc/sys").join(key),
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )?;
    }
    Ok(())
}

fn cgroup_name(machine: &str) -> String {
    format!("egret-cluster-{}-{machine}", std::process::id())
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A cgroup for the machine in each hierarchy.
fn make_cgroups(name: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut made = Vec::new();
    for (path, _, controllers) in hierarchies()? {
        let cgroup = path.join(cgroup_name(name));
        fs::create_dir(&cgroup).map_err(|error| format!("{}: {error}", cgroup.display()))?;
        if controllers.split(',').any(|controller| controller == "cpuset") {
            // New cpusets are empty, and nothing runs in such a one.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                fs::write(cgroup.join(file), fs::read(path.join(file))?)?;
            }
            fs::write(cgroup.join("cgroup.clone_children"), "1")?;
        }
        made.push(cgroup);
    }
    Ok(made)
}

/// Mount point, kind and controllers of each hierarchy of cgroups.
fn hierarchies() -> Result<Vec<(PathBuf, String, String)>, Failure> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let found = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        if !kind.starts_with("cgroup") || !path.starts_with(SYSTEM) {
            return None;
        }
        let controllers = options
            .split(',')
            .filter(|option| !["rw", "relatime", "nosuid", "nodev", "noexec", "xattr"].contains(option))
            .collect::<Vec<_>>()
            .join(",");
        Some((PathBuf::from(path), kind.to_owned(), controllers))
    });
    Ok(found.collect())
}

/// Whether it is gone, with those below.
fn remove_cgroup(cgroup: &Path) -> bool {
    if let Ok(entries) = fs::read_dir(cgroup) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_cgroup(&entry.path());
            }
        }
    }
    drop(fs::remove_dir(cgroup));
    !cgroup.exists()
}

pub(super) fn output(command: &mut Command, argv: &[&str]) -> Result<String, Failure> {
    let said = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{argv:?}: {error}"))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    Err(format!(
        "{}: {}{}",
        argv.join(" "),
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    )
    .into())
}
