//! A world of its own for each way to enforce, so that their rounds can alternate.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_benches::ruleset::Ruleset;
use egret_integration::{Daemon, PodSpec, World};
use serde_json::{Value, json};

use crate::cluster::{self, FIRST, FORBIDDEN, LAST, PORT, SERVER, STAND_INS, Size};
use crate::load::Path;

/// Objects in a file.
const IN_A_FILE: usize = 500;
/// For the largest cluster.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who enforces, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enforcing {
    /// Nobody: no table, no rule, no tracking of connections.
    Nothing,
    /// One rule that accepts what is of an open connection.
    OneRule(Ruleset),
    /// The enforcer wrote its rules.
    Egret(Ruleset),
    /// It wrote each rule over a set of its own, as it does where each is counted.
    EachAlone(Ruleset),
}

/// A node with two clients, their server and 107 interfaces more.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) path: Path,
    pub(crate) objects: Vec<Value>,
    // Dropped last: the sockets above are in its namespaces.
    pub(crate) world: World,
}

impl Testbed {
    pub(crate) fn new(size: Size) -> anyhow::Result<Self> {
        Self::of(World::new()?, size)
    }

    /// With pods in cgroups, those that are nothing but an interface as well.
    fn in_cgroups(size: Size) -> anyhow::Result<Self> {
        let mut world = World::new()?;
        world.put_pods_in_cgroups()?;
        let testbed = Self::of(world, size)?;
        let pods = testbed.pods_cgroup().context("it has cgroups")?;
        for number in 0..STAND_INS {
            fs::create_dir(pods.join(format!("pod{}", cluster::stand_in_uid(number))))?;
        }
        Ok(testbed)
    }

    fn of(world: World, size: Size) -> anyhow::Result<Self> {
        let pod = |(namespace, name): (&str, &str)| PodSpec::new(name).in_namespace(namespace);
        let world = world.with(pod(FIRST))?.with(pod(LAST))?.with(pod(SERVER))?;
        add_stand_ins(&world)?;
        let clients = [world.pod(FIRST.1), world.pod(LAST.1)];
        let path = Path::new(clients, world.pod(SERVER.1))?;
        let objects = size.objects(world.pods());
        Ok(Self { path, objects, world })
    }

    pub(crate) fn enforced_by(size: Size, enforcing: Enforcing) -> anyhow::Result<Self> {
        let testbed = match enforcing {
            Enforcing::Egret(ruleset) if ruleset.judges_sockets() => Self::in_cgroups(size)?,
            _ => Self::new(size)?,
        };
        match enforcing {
            Enforcing::Nothing => {}
            Enforcing::OneRule(ruleset) => testbed.write_one_rule(ruleset)?,
            Enforcing::Egret(ruleset) => testbed.leave_rules(ruleset, &[])?,
            Enforcing::EachAlone(ruleset) => testbed.leave_rules(ruleset, &["--rule-metrics", "1"])?,
        }
        Ok(testbed)
    }

    /// What every stateful firewall begins with.
    pub(crate) fn write_one_rule(&self, ruleset: Ruleset) -> anyhow::Result<()> {
        let flavour = match ruleset {
            Ruleset::Netfilter(flavour) => flavour,
            Ruleset::Nftables | Ruleset::Ebpf | Ruleset::Both => {
                let rule = "table inet one { chain forward { type filter hook forward priority 0; \
                            ct state established,related accept; }; }";
                return Ok(self.world.node().run_well(&["nft", rule])?);
            }
        };
        let program = format!("iptables-{}", flavour.name());
        let rule = "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT";
        let argv: Vec<&str> = std::iter::once(program.as_str()).chain(rule.split(' ')).collect();
        Ok(self.world.node().run_well(&argv)?)
    }

    /// What the enforcer wrote stays when it is gone.
    fn leave_rules(&self, ruleset: Ruleset, options: &[&str]) -> anyhow::Result<()> {
        let enforcer = self.start_enforcer_with(ruleset, options)?;
        self.wait_until_enforced().with_context(|| enforcer.log())
    }

    /// The enforcer of this build, once its rules are in force.
    pub(crate) fn start_enforcer(&self, ruleset: Ruleset) -> anyhow::Result<Daemon> {
        self.start_enforcer_with(ruleset, &[])
    }

    fn start_enforcer_with(&self, ruleset: Ruleset, options: &[&str]) -> anyhow::Result<Daemon> {
        self.write_manifests()?;
        let spec = self
            .world
            .enforcer(ruleset.backend())
            .in_folder(release_folder()?);
        let spec = spec.with(["--resync", "0s"]);
        let spec = spec.with(ruleset.options().iter().copied());
        let spec = spec.with(options.iter().copied());
        let spec = match self.world.cgroup_root() {
            Some(root) => spec.with([
                "--bpf-pins",
                &self.pins().display().to_string(),
                "--cgroup-root",
                &root.display().to_string(),
            ]),
            None => spec,
        };
        let mut daemon = self.world.launch(spec)?;
        let start = Instant::now();
        loop {
            match daemon.wait_until_ready() {
                Ok(_) => break,
                Err(_) if start.elapsed() < PATIENCE && daemon.is_running() => {}
                Err(error) => return Err(error).with_context(|| daemon.log()),
            }
        }
        ensure!(
            self.path.is_closed(FORBIDDEN)?,
            "it is ready, and what no policy allows is open:\n{}",
            daemon.log()
        );
        Ok(daemon)
    }

    /// In which the pods' cgroups are.
    fn pods_cgroup(&self) -> Option<PathBuf> {
        let pod = self.world.pod(FIRST.1).cgroup()?;
        Some(pod.parent()?.to_owned())
    }

    /// Of a world of its own. They stay when the enforcer is gone, and go with the testbed.
    fn pins(&self) -> PathBuf {
        let name = self
            .world
            .files()
            .file_name()
            .unwrap_or_default()
            .display()
            .to_string();
        PathBuf::from(format!("/sys/fs/bpf/bench-{}", name.replace('.', "-")))
    }

    /// A port that no policy allows is closed, and the server's is open.
    pub(crate) fn is_enforced(&self) -> anyhow::Result<bool> {
        Ok(self.path.is_closed(FORBIDDEN)? && !self.path.is_closed(PORT)?)
    }

    /// What is allowed opens with the first answer of the neighbour.
    pub(crate) fn wait_until_enforced(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        while !self.is_enforced()? {
            ensure!(
                start.elapsed() < PATIENCE,
                "a port that no policy allows is open, or the server's is not"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// JSON is YAML. The world's own file is replaced: it says less of the same pods.
    fn write_manifests(&self) -> anyhow::Result<()> {
        self.allow_first(true)?;
        let others: Vec<&Value> = self.objects.iter().filter(|object| !is_first(object)).collect();
        for (number, objects) in others.chunks(IN_A_FILE).enumerate() {
            let text = documents(objects.iter().copied());
            let name = if number == 0 {
                "world.yaml".to_owned()
            } else {
                format!("{number}.yaml")
            };
            self.world.manifests().write(&name, &text)?;
        }
        Ok(())
    }

    /// Writes the policies of the first pod: as they are, or with a port that nobody uses instead of theirs.
    pub(crate) fn allow_first(&self, is_allowed: bool) -> anyhow::Result<()> {
        let mut own: Vec<Value> = self
            .objects
            .iter()
            .filter(|object| is_first(object))
            .cloned()
            .collect();
        for policy in own.iter_mut().filter(|_| !is_allowed) {
            policy["spec"]["egress"][0]["ports"] = json!([{"protocol": "TCP", "port": 1}]);
        }
        Ok(self
            .world
            .manifests()
            .write("first.yaml", &documents(own.iter()))?)
    }

    /// Forgets all connections, so that a round does not pay for those of the round before.
    pub(crate) fn forget_flows(&self) -> anyhow::Result<()> {
        // It says on stderr how many there were, and fails where none are tracked.
        self.world.node().run(&["conntrack", "-F"])?;
        Ok(())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if self.pins().exists() {
            fs::remove_dir_all(self.pins()).expect("pins can be removed");
        }
        // The world removes the cgroups that it made.
        let Some(pods) = self.pods_cgroup() else { return };
        for number in 0..STAND_INS {
            fs::remove_dir(pods.join(format!("pod{}", cluster::stand_in_uid(number))))
                .expect("nobody is in it");
        }
    }
}

/// Whether it is a policy of the pod that stands first.
fn is_first(object: &Value) -> bool {
    object["kind"] == "NetworkPolicy" && object["metadata"]["namespace"] == FIRST.0
}

fn documents<'a>(objects: impl Iterator<Item = &'a Value>) -> String {
    objects.map(Value::to_string).collect::<Vec<_>>().join("\n---\n")
}

/// Both ends of a cable are interfaces of the node: all that rules know of a pod. Named as the plugins `bridge` and `ptp` name them,
/// for rules ask by how names begin; so does the last pod's then, which would be among the first else.
fn add_stand_ins(world: &World) -> anyhow::Result<()> {
    let mut lines = String::new();
    for number in (0..STAND_INS).step_by(2) {
        let (name, other) = (interface(number), interface(number + 1));
        writeln!(lines, "link add {name} type veth peer name {other}")?;
    }
    for number in 0..STAND_INS {
        let (name, address) = (interface(number), cluster::stand_in_address(number));
        writeln!(lines, "link set {name} up")?;
        writeln!(lines, "route add {address}/32 dev {name} scope link")?;
    }
    writeln!(
        lines,
        "link set {} name vethffffffff",
        world.pod(LAST.1).interface()
    )?;
    let file = world.files().join("stand-ins");
    fs::write(&file, lines)?;
    let file = file.display().to_string();
    Ok(world.node().run_well(&["ip", "-batch", &file])?)
}

/// Eight digits that look like chance (Knuth's multiplicative hash).
fn interface(number: usize) -> String {
    let digits = u32::try_from(number).map_or(0, |number| number.wrapping_mul(2_654_435_761));
    format!("veth{digits:08x}")
}

/// Where the daemons of this build are: a bench runs in `<profile>/deps`.
fn release_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("EGRET_BIN_DIR") {
        return Ok(folder.into());
    }
    let own = std::env::current_exe()?;
    let folder = own.ancestors().nth(2).context("a bench runs in a folder")?;
    Ok(folder.to_owned())
}
